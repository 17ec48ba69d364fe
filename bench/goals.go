package main

import (
	"fmt"
	"math"
)

// chapter is a part of the suite. A chapter without a goal gives figures for the record.
type chapter struct {
	id, text  string
	goal      bool
	mandatory bool
	run       func(b *bench) error
}

// chapters is the suite, in the order in which it runs.
var chapters = []chapter{
	{"M1", "in memory: data verbs, one writer, against copy-on-write by hand", true, false, m1},
	{"M3", "in memory: AtomicState, 64 and 1024 writers, against sync.Mutex", true, false, m3},
	{"M4", "in memory: AtomicState against protoactor-go and a goroutine per mutation", true, false, m4},
	{"M5", "in memory: the default budget against no timeout", true, false, m5},
	{"M7", "in memory: processor time of 64 writers that wait for a slow function, against sync.Mutex", true, true, m7},
	{"P1", "PostgreSQL, one row, 64 writers, against a naive compare-and-swap loop", true, true, p1},
	{"P2", "PostgreSQL, one row, 64 writers in two processes", true, true, p2},
	{"P3", "SQLite and files, one row, 64 writers", true, false, p3},
	{"P4", "10,000 rows, 64 writers, every store", true, false, p4},
	{"P5", "one writer, every store", true, false, p5},
	{"P7", "PostgreSQL and SQLite, transactions over two wallets, against SELECT FOR UPDATE and BEGIN IMMEDIATE", true, true, p7},
	{"P8", "PostgreSQL and SQLite, first requests with an idempotency key, against a claim by hand", true, true, p8},
	{"P9", "PostgreSQL and SQLite, claims of machines and admitted calls, against a claim by hand", true, false, p9},
	{"G1", "cost as a list grows", true, false, g1},
	{"G2", "cost as the number of scopes grows", true, false, g2},
	{"G3", "SQLite and PostgreSQL: append to a conversation as it grows", true, true, g3},
	{"G4", "SQLite and PostgreSQL: list a page by label as the number of records grows", true, false, g4},
	{"L1", "lost updates: 64 writers on Pawl, ADK-Go sessions and get-then-set", true, true, l1},
	{"R1", "PostgreSQL, durable runs of one step, against River", true, false, r1},
	{"S1", "PostgreSQL and SQLite, append of one event, against an INSERT by hand", true, false, s1},
	{"W1", "for the record: writers from 1 to 1024 on one in-memory container, three shapes of state", false, false, w1},
	{"W2", "for the record: hot row, uniform, Zipf, 90 % reads, every store, every strategy", false, false, w2},
	{"W4", "for the record: cost as documents and the number of watchers grow", false, false, w4},
	{"W5", "for the record: the cost of an idempotency key, and the number of duplicate executions", false, false, w5},
	{"W6", "for the record: a claim among many positions of a reaction", false, false, w6},
	{"W7", "for the record: the time from an append to its reaction", false, false, w7},
}

// mayMissBy is the factor by which a goal that is not mandatory may be missed.
const mayMissBy = 1.5

// verdict is the result of a quiet run.
type verdict struct {
	met, goals int
	broken     []string // violations of the rule that -check enforces
}

// judge counts the goals that are met. The goal of a chapter is met if it has rows and all of them
// meet it.
func judge(ran []chapter, rows []Row) (v verdict) {
	for _, c := range ran {
		if !c.goal {
			continue
		}
		v.goals++
		by, judged := 0.0, false // by: the factor of the worst row
		for _, r := range rows {
			if r.ID == c.id && r.Met != nil {
				judged = true
				by = max(by, r.missed)
			}
		}
		switch {
		case !judged:
			v.broken = append(v.broken, c.id+" was not measured")
		case by == 0:
			v.met++
		case c.mandatory:
			v.broken = append(v.broken, fmt.Sprintf("%s is mandatory and missed%s", c.id, factor(by)))
		case by > mayMissBy:
			v.broken = append(v.broken, fmt.Sprintf("%s is missed%s, more than %.1f times", c.id, factor(by), mayMissBy))
		}
	}
	return v
}

func factor(by float64) string {
	if math.IsInf(by, 1) {
		return ""
	}
	return fmt.Sprintf(" by %.2f times", by)
}

// flaws returns a line for each row with failed calls or lost updates of ours. Beside a load nothing
// else is checked.
func flaws(rows []Row) (found []string) {
	for _, r := range rows {
		if r.Failures != 0 || r.Lost != 0 {
			found = append(found, fmt.Sprintf("%s, %s, %s: %s failed, %s lost", r.ID, r.Work, r.Store,
				count(int(r.Failures), "call"), count(int(r.Lost), "update")))
		}
	}
	return found
}
