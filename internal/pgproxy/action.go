package pgproxy

import (
	"math"
	"time"
)

// Commit is a client message that makes a transaction durable, if the server accepts it.
type Commit struct {
	Number     int  // counts the commits that the script was asked about, from 1
	Connection int  // counts the connections that the proxy has accepted, from 1
	Explicit   bool // it is a COMMIT
	// Statements were executed since the transaction began, COMMIT included. Comments are removed
	// and literals are empty.
	Statements []string
}

// Action says what the proxy does with a commit. A cut connection is closed on both sides,
// alternately by a TCP reset, which may overtake data sent before it, and by an orderly close.
type Action struct {
	moment   moment
	longest  time.Duration   // how long to hold the answer
	released <-chan struct{} // ends the hold when closed; nil: never
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
	// Pass forwards the commit and its answer.
	Pass = Action{moment: pass}

	// BeforeCommit cuts the connection instead of forwarding the commit. The server has received
	// all earlier messages and rolls back.
	BeforeCommit = Action{moment: beforeCommit}

	// AfterSend forwards the commit and cuts the connection at once. The server may or may not
	// execute it; the client gets no answer.
	AfterSend = Action{moment: afterSend}

	// AfterExecute forwards the commit and cuts the connection when the server has answered. The
	// client gets no part of the answer to the request that contains the commit.
	AfterExecute = Action{moment: afterExecute}
)

// Hold forwards the commit, and its answer d after the server sent it.
func Hold(d time.Duration) Action { return Action{moment: hold, longest: d} }

// HoldUntil forwards the commit, and its answer once the channel is closed.
func HoldUntil(released <-chan struct{}) Action {
	return Action{moment: hold, longest: math.MaxInt64, released: released}
}
