"""Memory and lifetimes: what is kept until work is done, who may use it, and scratch of streams."""
