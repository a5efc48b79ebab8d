"""What a browser is given. The files beside this one serve the exported pages and the server alike."""
