package pawl

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pawl-go/pawl/internal/queue"
)

// Stats is what a runtime does at one moment, in this process only.
type Stats struct {
	// Queues are the queues of mutations that are not idle, in the order of their keys. The in-memory
	// scopes of two Locals can have the same key. Callers that wait for a lease are not included.
	Queues []QueueStats
	// Leases are the leases that the runtime holds, in the order of their keys.
	Leases []LeaseStats
	// Transactions is the number of transactions in progress.
	Transactions int
	// Watchers is the number of watches of scopes.
	Watchers int
	// InMemory and Persisted are the numbers of scopes that this process keeps in memory. For persisted
	// ones that is a cache.
	InMemory, Persisted int
}

// KindInfo describes a kind that a runtime knows, as [Kind] declares it.
type KindInfo struct {
	Name       string
	InMemory   bool
	Label, Due Field
	TTL        time.Duration
	Log        bool
	Schema     int // len(Kind.Upgrades)
}

// QueueStats is the state of the queue of one scope.
type QueueStats struct {
	Scope    Key
	InMemory bool
	// Waiting is the number of mutations that wait for their turn.
	Waiting int
	// LongestWait is how long the first of them has waited since it was submitted.
	LongestWait time.Duration
	// Turn is the number of mutations that have their turn: they are computed, or share a commit in
	// progress.
	Turn int
	// Running are the functions that run now, in the order of their start.
	Running []FunctionStats
}

// FunctionStats is a function that runs in the turn of its mutation.
type FunctionStats struct {
	Verb  string
	Since time.Time
	// Stuck says that it has run for longer than the budget of its call. Scope.Abandon gives it up.
	Stuck bool
}

// LeaseStats is a lease that a runtime holds.
type LeaseStats struct {
	Scope  Key
	Holder string
	Token  uint64
	// Until is the time until which the lease is live at least, by this process's clock, unless it is
	// renewed.
	Until time.Time
}

// WorkerStats is the state of a background worker of this process that works in rounds, such as a
// [Sweeper].
type WorkerStats struct {
	Name string
	// Running says that it was started and not stopped.
	Running bool
	// Working says that it works now.
	Working bool
	// Interval is the time between two rounds.
	Interval time.Duration
	// Round is when the last round began. Zero: there was none.
	Round time.Time
	// Done is the number of documents that it has changed.
	Done int
	// Failure is the error of the last work, nil if that succeeded.
	Failure error
}

// Kinds returns the kinds that the runtime knows, in the order of their names: those of Config.Kinds,
// and those that were used. Packages above the root have kinds of their own.
func (rt *Runtime) Kinds() (all []KindInfo) {
	rt.kinds.Range(func(_, v any) bool {
		k := v.(*kind)
		all = append(all, KindInfo{Name: k.Name, InMemory: k.InMemory, Label: k.Label, Due: k.Due, TTL: k.TTL, Log: k.Log, Schema: len(k.Upgrades)})
		return true
	})
	slices.SortFunc(all, func(a, b KindInfo) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Stats returns what the runtime does now. It looks at one scope after another, so the parts are of
// slightly different moments. It does no I/O, and takes time in proportion to the number of scopes
// in memory: it is for people and metrics, a few times a minute. It works after Close.
func (rt *Runtime) Stats() Stats {
	var s Stats
	for _, r := range rt.inMemory() {
		s.InMemory += s.add(r)
	}
	s.Persisted = s.add(rt.stored)
	s.Leases, s.Transactions = rt.leases.stats(), len(rt.transactions.Live())
	slices.SortStableFunc(s.Queues, func(a, b QueueStats) int { return a.Scope.Compare(b.Scope) })
	slices.SortFunc(s.Leases, func(a, b LeaseStats) int { return a.Scope.Compare(b.Scope) })
	return s
}

// Abandon gives up the function that has run in a scope since a moment, as [Scope.Abandon] does, and
// reports whether it still ran. Scope and since are those of Stats: a tool needs no type for it, and
// a function that started later is left alone.
func (rt *Runtime) Abandon(scope Key, since time.Time) bool {
	if since.IsZero() {
		return false
	}
	for _, r := range append(rt.inMemory(), rt.stored) {
		for key, c := range r.All() {
			if key == scope && c.abandon(since) {
				return true
			}
		}
	}
	return false
}

// add adds the queues and watchers of the containers in r, and returns the number of containers.
func (s *Stats) add(r *containers) (count int) {
	for key, c := range r.All() {
		count++
		q, watchers := c.stats(time.Now())
		q.Scope = key
		s.Watchers += watchers
		if q.Waiting+q.Turn+len(q.Running) > 0 {
			s.Queues = append(s.Queues, q)
		}
	}
	return count
}

// stats returns the state of the queue and the number of watchers; it is part of resident.
func (c *container) stats(now time.Time) (s QueueStats, watchers int) {
	c.queue.Lock()
	defer c.queue.Unlock()
	s.InMemory = true
	if w := c.queue.First(); w != nil {
		s.Waiting, s.LongestWait = c.queue.Len(), now.Sub(w.Value.submitted)
	}
	if w := c.queue.Current(); w != nil {
		s.Turn = 1
		if p := &w.Value; p.frame != nil && w.State == queue.Running {
			s.Running = []FunctionStats{{p.change.verb, p.started, p.call.timeout > 0 && now.Sub(p.started) > p.call.timeout}}
		}
	}
	return s, c.group.Load().Len()
}

// stats returns the state of the queue and the number of watchers; it is part of resident.
func (s *stored) stats(now time.Time) (out QueueStats, watchers int) {
	s.queue.Lock()
	defer s.queue.Unlock()
	if w := s.queue.First(); w != nil {
		out.Waiting, out.LongestWait = s.queue.Len(), now.Sub(w.Value.submitted)
	}
	turn := slices.Clone(s.alone)
	if s.batch != nil {
		turn = append(turn, s.batch.members...)
	}
	if w := s.queue.Current(); w != nil && !slices.Contains(turn, w) {
		turn = append(turn, w) // a transaction holds the queue
	}
	out.Turn = len(turn)
	for _, w := range turn {
		if v := &w.Value; v.running {
			out.Running = append(out.Running, FunctionStats{v.change.verb, v.started, now.Sub(v.started) > v.call.retry.Within})
		}
	}
	slices.SortFunc(out.Running, func(a, b FunctionStats) int { return cmp.Compare(a.Since.UnixNano(), b.Since.UnixNano()) })
	return out, s.group.Load().Len()
}

// stats returns the live leases.
func (s *leases) stats() (out []LeaseStats) {
	s.mu.Lock()
	live := slices.Collect(maps.Values(s.live))
	s.mu.Unlock()
	for _, l := range live {
		l.mu.Lock()
		if l.ended == nil {
			out = append(out, LeaseStats{Scope: l.key, Holder: l.holder, Token: l.token, Until: l.until})
		}
		l.mu.Unlock()
	}
	return out
}
