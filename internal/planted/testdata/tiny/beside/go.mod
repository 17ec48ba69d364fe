module tiny/beside

go 1.26

require tiny v0.0.0
