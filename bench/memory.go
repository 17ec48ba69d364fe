package main

func m1(b *bench) error { return nil }
func m2(b *bench) error { return nil }
func m3(b *bench) error { return nil }
func m4(b *bench) error { return nil }
func m5(b *bench) error { return nil }
func m6(b *bench) error { return nil }
func w1(b *bench) error { return nil }
