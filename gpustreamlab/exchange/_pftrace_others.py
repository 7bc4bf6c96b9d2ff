"""x"""
def trace_of_others(*a): raise NotImplementedError
