module tiny

go 1.26
