// A package with a function that is declared here and defined elsewhere has to have a file in assembly.
