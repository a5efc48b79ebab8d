"""Model architectures (CNN encoder, attention, LSTM decoder) and model files."""
