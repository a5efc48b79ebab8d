"""Sources of captioned pictures, one file each, all giving the same records."""
