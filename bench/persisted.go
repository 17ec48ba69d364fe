package main

// The persisted chapters. Every contender adds units to the same small JSON documents. Afterwards the
// units in the documents are counted.

// against compares AtomicState with the naive loop of eight tries.
func (b *bench) against(a access, store string, l load) comparison {
	l.cut = true
	return comparison{work: a.name, store: store, load: l, ours: a.on(atomically, store), peer: a.on(naive8, store), times: b.pick(5, 1)}
}

// p1 measures 64 writers on one row: a closed loop with its 99th percentile, fixed work, and a server
// whose commits take 2 ms.
func p1(b *bench) error {
	closed := b.against(hotRow, inPostgres, load{writers: 64, lasts: b.lasting(2000, 400)})
	closed.goal, closed.tail, closed.flawless = atLeast(20), atMost(0.02), true
	closed.load.cut = false // wait for the last units, which the percentile needs

	fixed := b.against(hotRow, inPostgres, load{writers: 64, each: 20})
	fixed.work += ", 20 units by each"
	fixed.goal, fixed.flawless, fixed.by = atLeast(75), true, jobsPerSecond
	fixed.times = b.pick(15, 1) // many, because a repetition of ours is short

	slow := b.against(hotRow, inSlowPostgres, load{writers: 64, lasts: b.lasting(2000, 400)})
	slow.goal, slow.flawless, slow.times = atLeast(100), true, b.pick(3, 1)

	record := b.against(hotRow, inPostgres, load{writers: 64, lasts: b.lasting(1500, 200)})
	record.peer, record.also = hotRow.on(naive3, inPostgres), []side{hotRow.on(locking, inPostgres), hotRow.on(byIncrement, inPostgres)}
	record.times = b.pick(3, 1)
	return b.runComparisons(closed, fixed, slow, record)
}

// p2 measures the same closed loop with half of the writers in a second process.
func p2(b *bench) error {
	d := b.against(hotRow, inPostgres, load{writers: 64, lasts: b.lasting(2000, 400), twice: true})
	d.work += ", two processes"
	d.goal, d.flawless = atLeast(12), true
	return b.runComparisons(d)
}

// p3 measures 64 writers on one row, in SQLite and in plain files.
func p3(b *bench) error {
	l := load{writers: 64, lasts: b.lasting(1000, 300)}
	lite, files := b.against(hotRow, inSQLite, l), b.against(hotRow, inFiles, l)
	lite.goal, files.goal = atLeast(20), atLeast(20)
	lite.also = []side{hotRow.on(naive8Wide, inSQLite)}
	return b.runComparisons(lite, files)
}

// p4 measures many rows, where writers rarely conflict. For the record, the peer also gets more
// connections.
func p4(b *bench) error {
	l := load{writers: 64, lasts: b.lasting(1000, 200)}
	postgres, lite, files := b.against(uniform, inPostgres, l), b.against(uniform, inSQLite, l), b.against(uniform, inFiles, l)
	postgres.goal, lite.goal, files.goal = atLeast(2.5), atLeast(3), atLeast(1)
	for _, d := range []*comparison{&postgres, &lite} {
		d.also = []side{uniform.on(naive8Wide, d.store)}
	}
	return b.runComparisons(postgres, lite, files)
}

// p5 measures one writer, which gains nothing from queues and batches.
func p5(b *bench) error {
	for _, store := range []string{inPostgres, inSQLite, inFiles} {
		d := b.against(hotRow, store, load{writers: 1, lasts: b.lasting(700, 200)})
		d.goal, d.times = atLeast(0.9), b.pick(9, 1) // many, because the difference is small
		if err := b.runComparisons(d); err != nil {
			return err
		}
	}
	return nil
}

// w2 measures every store, access and strategy, with the conflicts of each.
func w2(b *bench) error {
	run := func(a access, store string, writers int) error {
		d := b.against(a, store, load{writers: writers, lasts: b.lasting(700, 50)})
		d.ours, d.also = a.on(observed, store), []side{a.on(naive3, store), a.on(locking, store)}
		d.conflicts, d.times = true, b.pick(2, 1)
		return b.runComparisons(d)
	}
	for _, writers := range []int{1, 8} {
		if err := run(hotRow, inPostgres, writers); err != nil {
			return err
		}
	}
	for _, store := range []string{inPostgres, inSQLite, inFiles} {
		for _, a := range []access{hotRow, uniform, zipfian, hotReads} {
			if b.quick && store != inPostgres && a.name != hotRow.name {
				continue
			}
			if err := run(a, store, 64); err != nil {
				return err
			}
		}
	}
	return nil
}
