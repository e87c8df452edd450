"""The live page: a small web server on this machine that shows runs while they are trained."""
