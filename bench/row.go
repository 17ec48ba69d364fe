package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"text/tabwriter"
)

// Row is one comparison, as the JSON files in results/ have it.
type Row struct {
	ID       string  `json:"id"`
	Work     string  `json:"work"`
	Store    string  `json:"store"`
	Writers  int     `json:"writers"`
	Ours     float64 `json:"ours"`      // in Unit
	Peer     float64 `json:"peer"`      // in Unit; 0: no peer
	PeerName string  `json:"peer_name"` // "": no peer
	Ratio    float64 `json:"ratio"`     // ours/peer, the median over interleaved pairs
	Goal     string  `json:"goal"`      // a bound on Ratio, or on Ours if there is no peer; "": none
	Met      *bool   `json:"met"`       // null without a goal, and beside a load
	Failures int64   `json:"failures"`  // our calls that returned an error, over all repetitions
	Lost     int64   `json:"lost"`      // our updates that were acknowledged and are missing
	P50      float64 `json:"p50"`       // of ours, in microseconds
	P99      float64 `json:"p99"`
	Unit     string  `json:"unit"`

	PeerFailures int64   `json:"peer_failures"`
	PeerLost     int64   `json:"peer_lost"`
	PeerP50      float64 `json:"peer_p50"`
	PeerP99      float64 `json:"peer_p99"`

	// Size is the number of items, scopes, bytes or watchers in a row about growth; 0: another row.
	Size float64 `json:"size,omitempty"`

	// Acknowledged counts the calls that returned nil, in a row about lost updates; 0: another row.
	Acknowledged     int64 `json:"acknowledged,omitempty"`
	PeerAcknowledged int64 `json:"peer_acknowledged,omitempty"`

	// Busy is the number of busy processes beside the measurement; 0: the run was quiet.
	Busy int `json:"busy_processes,omitempty"`

	// missed is the factor by which the goal is missed; 0: met; +Inf: there is no such factor.
	missed float64
}

// bound is a limit on a figure.
type bound struct {
	atMost bool
	value  float64
}

func atMost(v float64) *bound  { return &bound{true, v} }
func atLeast(v float64) *bound { return &bound{false, v} }

func (b *bound) String() string {
	if b == nil {
		return ""
	}
	sign := ">= "
	if b.atMost {
		sign = "<= "
	}
	return sign + strconv.FormatFloat(b.value, 'g', -1, 64)
}

// missedBy returns the factor by which v is beyond the bound, 0 if v is within it.
func (b *bound) missedBy(v float64) float64 {
	switch {
	case math.IsNaN(v):
		return math.Inf(1)
	case b.atMost && v > b.value:
		if b.value == 0 {
			return math.Inf(1)
		}
		return v / b.value
	case !b.atMost && v < b.value:
		if v <= 0 {
			return math.Inf(1)
		}
		return b.value / v
	}
	return 0
}

// judge sets Goal and Met. The goal is met if figure is within the bound. With flawless, no call may
// have failed and no update may be lost.
func (r *Row) judge(goal *bound, figure float64, flawless bool) {
	if goal == nil {
		return
	}
	r.Goal = goal.String()
	r.missed = goal.missedBy(figure)
	if flawless && (r.Failures != 0 || r.Lost != 0) {
		r.missed = math.Inf(1)
	}
	met := r.missed == 0
	r.Met = &met
}

func writeJSON(path string, rows []Row) error {
	text, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

func printTable(w io.Writer, rows []Row) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "id\twork\tstore\twriters\tours\tpeer\tunit\tagainst\tratio\tgoal\tmet\tfailures\tlost\tp50 us\tp99 us\ttheirs: failures\tlost\tp99 us\t")
	for _, r := range rows {
		met := ""
		if r.Met != nil {
			met = map[bool]string{true: "yes", false: "NO"}[*r.Met]
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%d\t%d\t%s\t\n", r.ID, r.Work, r.Store, r.Writers, figure(r.Ours), r.versus(r.Peer),
			r.Unit, r.PeerName, r.versus(r.Ratio), r.Goal, met, r.Failures, r.Lost, figure(r.P50), figure(r.P99), r.PeerFailures, r.PeerLost, figure(r.PeerP99))
	}
	t.Flush()
}

// versus formats v like figure, and returns "" for a row without a peer.
func (r *Row) versus(v float64) string {
	if r.PeerName == "" {
		return ""
	}
	return figure(v)
}

// figure formats v with three significant digits, and without a fraction from 100 on.
func figure(v float64) string {
	if math.Abs(v) >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
