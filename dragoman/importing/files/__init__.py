"""Which files belong to one run: archives, kinds of files, and runs among them."""
