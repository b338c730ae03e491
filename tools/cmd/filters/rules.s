// A function without a body (rules) needs an assembly file in its package.
