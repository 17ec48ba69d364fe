package pgproxy

import (
	"math"
	"time"
)

// Commit is a message of a client that makes a transaction durable, if the server accepts it.
type Commit struct {
	Number     int      // of all commits that the proxy asked about, from 1
	Connection int      // of all connections that the proxy has accepted, from 1
	Explicit   bool     // it is a COMMIT
	Statements []string // what was executed since the transaction began, COMMIT included; without comments, literals empty
}

// Action is what the proxy does about a commit. A connection that is cut is dropped on both sides,
// in turns by a TCP reset, which may overtake what was sent before, and by an orderly end.
type Action struct {
	moment   moment
	longest  time.Duration   // to hold
	released <-chan struct{} // nil: never
}

type moment int

const (
	pass moment = iota
	beforeCommit
	afterSend
	afterExecute
	hold
)

var (
	// Pass passes the commit and its answer on.
	Pass = Action{moment: pass}

	// BeforeCommit cuts the connection instead of passing the commit on. The server has got all
	// that the client sent before, and rolls it back.
	BeforeCommit = Action{moment: beforeCommit}

	// AfterSend passes the commit on and cuts the connection at once. Whether the server executes
	// it is open; the client gets no answer.
	AfterSend = Action{moment: afterSend}

	// AfterExecute passes the commit on and cuts the connection when the server has answered, whatever
	// it answered. The client gets nothing of the answer to the request that the commit is part of.
	AfterExecute = Action{moment: afterExecute}
)

// Hold passes the commit on, and its answer that long after the server gave it.
func Hold(d time.Duration) Action { return Action{moment: hold, longest: d} }

// HoldUntil is Hold until the channel is closed.
func HoldUntil(released <-chan struct{}) Action {
	return Action{moment: hold, longest: math.MaxInt64, released: released}
}
