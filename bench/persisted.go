package main

func p1(b *bench) error { return nil }
func p2(b *bench) error { return nil }
func p3(b *bench) error { return nil }
func p4(b *bench) error { return nil }
func p5(b *bench) error { return nil }
func p6(b *bench) error { return nil }
func w2(b *bench) error { return nil }
func w3(b *bench) error { return nil }
