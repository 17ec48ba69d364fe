package main

import (
	"fmt"
	"math"
)

// chapter is a part of the suite: a goal, or (no goal) figures for the record.
type chapter struct {
	id, text  string
	goal      bool
	mandatory bool
	run       func(b *bench) error
}

// chapters is the suite, in the order in which it runs.
var chapters = []chapter{
	{"M1", "in memory: a data verb, uncontended, against its merge under a sync.Mutex", true, true, m1},
	{"M2", "in memory: AtomicState, uncontended, against a bare channel hand-off", true, false, m2},
	{"M3", "in memory: AtomicState, 64 and 1024 writers, against sync.Mutex", true, true, m3},
	{"M4", "in memory: AtomicState against protoactor-go and a promise tail", true, false, m4},
	{"M5", "in memory: the default budget against no timeout", true, false, m5},
	{"M6", "in memory: reading a snapshot against atomic.Pointer", true, false, m6},
	{"P1", "PostgreSQL, one row, 64 writers, against a naive compare-and-swap loop", true, true, p1},
	{"P2", "PostgreSQL, one row, 64 writers in two processes", true, true, p2},
	{"P3", "SQLite and files, one row, 64 writers", true, false, p3},
	{"P4", "10,000 rows: PostgreSQL with 64 and 512 writers, SQLite with 64", true, false, p4},
	{"P5", "one writer, every store", true, false, p5},
	{"P6", "1 to 8 writers on many rows", true, false, p6},
	{"G1", "cost as a list grows", true, false, g1},
	{"G2", "cost as the number of scopes grows", true, false, g2},
	{"L1", "lost updates: 64 writers on Pawl, ADK-Go sessions and get-then-set", true, true, l1},
	{"W1", "for the record: writers from 1 to 1024 on one in-memory container, three shapes of state", false, false, w1},
	{"W2", "for the record: hot row, uniform, Zipf, 90 % reads, every store, every strategy", false, false, w2},
	{"W3", "for the record: transactions over two hot wallets", false, false, w3},
	{"W4", "for the record: cost as documents and the number of watchers grow", false, false, w4},
	{"W5", "for the record: what an idempotency key costs a request, and how many duplicates get through", false, false, w5},
}

// The rule that -check enforces: every mandatory goal is met; of the others at most three are missed, none by more than 1.5 times.
const (
	mayMiss   = 3
	mayMissBy = 1.5
)

// verdict is what a run comes to.
type verdict struct {
	met, goals int
	broken     []string // what breaks the rule
}

// judge counts the goals that the rows of these chapters meet. A goal is met when all its rows are, and it has some.
func judge(ran []chapter, rows []Row) (v verdict) {
	missed := 0
	for _, c := range ran {
		if !c.goal {
			continue
		}
		v.goals++
		by, judged := 0.0, false // by how much the worst row misses
		for _, r := range rows {
			if r.ID == c.id && r.Met != nil {
				judged = true
				by = max(by, r.missedBy())
			}
		}
		switch {
		case !judged:
			v.broken = append(v.broken, c.id+" was not measured")
		case by == 0:
			v.met++
		case c.mandatory:
			v.broken = append(v.broken, fmt.Sprintf("%s is mandatory and missed%s", c.id, factor(by)))
		default:
			missed++
			if by > mayMissBy {
				v.broken = append(v.broken, fmt.Sprintf("%s is missed%s, more than %.1f times", c.id, factor(by), mayMissBy))
			}
		}
	}
	if missed > mayMiss {
		v.broken = append(v.broken, fmt.Sprintf("%d goals are missed that may be, more than %d", missed, mayMiss))
	}
	return v
}

func factor(by float64) string {
	if math.IsInf(by, 1) {
		return ""
	}
	return fmt.Sprintf(" by %.2f times", by)
}
