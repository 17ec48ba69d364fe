package main

func g1(b *bench) error { return nil }
func g2(b *bench) error { return nil }
func w4(b *bench) error { return nil }
