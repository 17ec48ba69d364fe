package inspect

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
)

// maxQueues is the number of queues and of leases on the page of the process.
const maxQueues = 200

// queueRow is a queue on the page of the process.
type queueRow struct {
	pawl.QueueStats
	Link      string // empty: the scope is in memory, and has no page
	Stuck     bool
	Functions []functionRow
}

// functionRow is a function that runs.
type functionRow struct {
	pawl.FunctionStats
	Start   string
	For     time.Duration
	Abandon string // link; empty: it is not stuck, or the action is not allowed
}

// workerRow is a background worker on the page of the process.
type workerRow struct {
	pawl.WorkerStats
	State string
	Ago   time.Duration // since the last round began; 0: there was none
}

// leaseRow is a lease on the page of the process.
type leaseRow struct {
	pawl.LeaseStats
	Left time.Duration
	Link string
}

// queues is the page of this process: what waits, what runs, and which leases it holds. The queues
// with stuck functions come first, then those with the longest wait.
func (h *handler) queues(*http.Request) (page, error) {
	now, stats := time.Now(), h.rt.Stats()
	queues := make([]queueRow, 0, len(stats.Queues))
	for _, q := range stats.Queues {
		row := queueRow{QueueStats: q}
		if !q.InMemory {
			row.Link = docLink(q.Scope)
		}
		for _, f := range q.Running {
			row.Stuck = row.Stuck || f.Stuck
			function := functionRow{FunctionStats: f, Start: formatTime(f.Since), For: now.Sub(f.Since)}
			if f.Stuck && h.allows(ActAbandon) {
				function.Abandon = abandonLink(q.Scope, f)
			}
			row.Functions = append(row.Functions, function)
		}
		queues = append(queues, row)
	}
	slices.SortStableFunc(queues, func(a, b queueRow) int {
		if a.Stuck != b.Stuck {
			return map[bool]int{true: -1, false: 1}[a.Stuck]
		}
		return cmp.Compare(b.LongestWait, a.LongestWait)
	})
	leases := make([]leaseRow, 0, len(stats.Leases))
	for _, l := range stats.Leases {
		leases = append(leases, leaseRow{l, l.Until.Sub(now), docLink(l.Scope)})
	}
	return page{Template: "queues.html", Heading: "This process", Data: map[string]any{
		"Stats": stats, "Workers": h.workers(now), "Queues": queues[:min(len(queues), maxQueues)], "MoreQueues": max(len(queues)-maxQueues, 0),
		"Leases": leases[:min(len(leases), maxQueues)], "MoreLeases": max(len(leases)-maxQueues, 0),
	}}, nil
}

// workers returns the background workers.
func (h *handler) workers(now time.Time) (rows []workerRow) {
	for _, of := range h.config.Workers {
		for _, w := range of.Workers() {
			row := workerRow{WorkerStats: w, State: "stopped"}
			switch {
			case w.Working:
				row.State = "working"
			case w.Running:
				row.State = "waiting for its next round"
			case w.Round.IsZero():
				row.State = "not started"
			}
			if !w.Round.IsZero() {
				row.Ago = now.Sub(w.Round)
			}
			rows = append(rows, row)
		}
	}
	return rows
}
