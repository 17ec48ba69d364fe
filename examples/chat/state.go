package main

import (
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
)

// Session is the head of a thread. Each message is a separate document, so a new message does not
// rewrite a long thread, and a thread has no size limit.
type Session struct {
	Owner string     `json:"owner"`
	Title string     `json:"title"`
	Turns int        `json:"turns"` // the number of questions so far
	Open  []OpenTurn `json:"open"`  // the turns that are not over, in the order of their answers
}

// OpenTurn is a turn that waits for its answer, or is being answered.
type OpenTurn struct {
	ID string `json:"id"`
	N  int    `json:"n"`
}

// Turn is a question and its answer while the answer is being made.
type Turn struct {
	For     flow.IDs  `json:"for"`
	N       int       `json:"n"`
	Status  string    `json:"status"`
	Stop    bool      `json:"stop"`  // the user has stopped it
	Steps   []Step    `json:"steps"` // the calls of tools so far
	Text    string    `json:"text"`  // the text since the last step
	Board   Board     `json:"board"` // a copy of the task board, for the page
	Error   string    `json:"error,omitempty"`
	Asked   time.Time `json:"asked"`
	Started time.Time `json:"started,omitzero"`
	Tries   int       `json:"tries"` // how often a server has started to answer it
}

// The states of a turn. The last three are final.
const (
	waiting   = "waiting"
	answering = "answering"
	done      = "done"
	stopped   = "stopped"
	failed    = "failed"
)

// over reports whether the status is final.
func (t Turn) over() bool { return t.Status != waiting && t.Status != answering }

// Account is the state of a user.
type Account struct {
	Org      string            `json:"org"`
	Credits  int64             `json:"credits"`
	Settings map[string]string `json:"settings"`
}

// Limits are the state of an organisation.
type Limits struct {
	PerDay int64            `json:"per_day"`
	Used   map[string]int64 `json:"used"` // questions per day
}

// Board collects the results of the parallel searches of one turn. It is in memory, and ends with
// the call that answers the turn.
type Board struct {
	Of      int               `json:"of"`
	Done    int               `json:"done"`
	Results map[string]string `json:"results"`
}

var (
	Sessions = pawl.Kind[Session]{Name: pawl.KindSession, Label: "owner"}
	Messages = pawl.Kind[Message]{Name: "message"}
	Turns    = pawl.Kind[Turn]{Name: pawl.KindRequest, Label: "status"} // expires after its end: see finish
	Accounts = pawl.Kind[Account]{Name: pawl.KindUser}
	Orgs     = pawl.Kind[Limits]{Name: pawl.KindOrg}
	Secrets  = pawl.Kind[Secret]{Name: "secret"}
	Charges  = pawl.Kind[Charge]{Name: "charge", Label: "status"}
	Mails    = pawl.Kind[Mail]{Name: "mail", Label: "status"}
	Bank     = pawl.Kind[Capture]{Name: "bank"} // stands for the records of an outside bank
	Counters = pawl.Kind[Counter]{Name: "counter", TTL: time.Hour}
)

var kinds = []pawl.AnyKind{Sessions, Messages, Turns, Accounts, Orgs, Secrets, Charges, Mails, Bank, Counters}

// The fields that verbs change. MustField checks their names when the program starts.
var (
	title    = Sessions.MustField("title")
	credits  = Accounts.MustField("credits")
	settings = Accounts.MustField("settings")
	text     = Turns.MustField("text")
	steps    = Turns.MustField("steps")
	board    = Turns.MustField("board")
	stop     = Turns.MustField("stop")
)

// turnsPerPage is the number of turns on one page of a thread.
const turnsPerPage = 50

// pagePrefix is the prefix of the ids of all messages on one page, for List.
func pagePrefix(session string, page int) string { return fmt.Sprintf("%s/%05d/", session, page) }

// messageID returns the id of a message of turn n. A question sorts before its answer.
func messageID(session string, n int, role string) string {
	order := map[string]int{"user": 0, "assistant": 1}[role]
	return fmt.Sprintf("%s%02d-%d", pagePrefix(session, n/turnsPerPage), n%turnsPerPage, order)
}
