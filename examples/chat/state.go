package main

import (
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
)

// Session is the head of a thread. Its messages are documents of their own, so that a long thread neither rewrites itself with each message nor hits the size limit.
type Session struct {
	Owner string     `json:"owner"`
	Title string     `json:"title"`
	Turns int        `json:"turns"` // asked so far
	Open  []OpenTurn `json:"open"`  // not over yet, in the order in which they will be answered
}

// OpenTurn is a question that waits for its answer, or is being answered.
type OpenTurn struct {
	ID string `json:"id"`
	N  int    `json:"n"`
}

// Turn is the state of a request while its answer is made.
type Turn struct {
	For     flow.IDs  `json:"for"`
	N       int       `json:"n"`
	Status  string    `json:"status"`
	Stop    bool      `json:"stop"`  // somebody wants it to end
	Steps   []Step    `json:"steps"` // what the model asked of its tools
	Text    string    `json:"text"`  // what it has said since, so far
	Board   Board     `json:"board"` // a copy of the task board, for those who watch
	Error   string    `json:"error,omitempty"`
	Asked   time.Time `json:"asked"`
	Started time.Time `json:"started,omitzero"`
	Tries   int       `json:"tries"` // how often a server has begun with it
}

// The states of a turn. The last three are final.
const (
	waiting   = "waiting"
	answering = "answering"
	done      = "done"
	stopped   = "stopped"
	failed    = "failed"
)

// over reports whether nothing more will come.
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
	Used   map[string]int64 `json:"used"` // answers, by day
}

// Board is where the parallel searches of one turn meet; it lives in memory, as long as the turn.
type Board struct {
	Of      int               `json:"of"`
	Done    int               `json:"done"`
	Results map[string]string `json:"results"`
}

var (
	Sessions = pawl.Kind[Session]{Name: pawl.KindSession, Label: "owner"}
	Messages = pawl.Kind[Message]{Name: "message"}
	Turns    = pawl.Kind[Turn]{Name: pawl.KindRequest, Label: "status"} // expires once it is over: see finish
	Accounts = pawl.Kind[Account]{Name: pawl.KindUser}
	Orgs     = pawl.Kind[Limits]{Name: pawl.KindOrg}
	Secrets  = pawl.Kind[Secret]{Name: "secret"}
	Charges  = pawl.Kind[Charge]{Name: "charge", Label: "status"}
	Mails    = pawl.Kind[Mail]{Name: "mail", Label: "status"}
	Bank     = pawl.Kind[Capture]{Name: "bank"} // not ours: the books of the bank, as far as this example has one
	Counters = pawl.Kind[Counter]{Name: "counter", TTL: time.Hour}
)

var kinds = []pawl.AnyKind{Sessions, Messages, Turns, Accounts, Orgs, Secrets, Charges, Mails, Bank, Counters}

// The fields that the verbs address, checked when the program starts.
var (
	title    = Sessions.MustField("title")
	credits  = Accounts.MustField("credits")
	settings = Accounts.MustField("settings")
	text     = Turns.MustField("text")
	steps    = Turns.MustField("steps")
	board    = Turns.MustField("board")
	stop     = Turns.MustField("stop")
)

// Of one page of a thread all ids begin alike: that is how List finds them.
const turnsPerPage = 50

func pagePrefix(session string, page int) string { return fmt.Sprintf("%s/%05d/", session, page) }

// messageID is where a message of turn n is kept; questions come before answers.
func messageID(session string, n int, role string) string {
	order := map[string]int{"user": 0, "assistant": 1}[role]
	return fmt.Sprintf("%s%02d-%d", pagePrefix(session, n/turnsPerPage), n%turnsPerPage, order)
}
