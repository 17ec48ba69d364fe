package server

import (
	"cmp"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/stream"
)

// Session is the head of a thread. The messages of the thread are a stream with the id of the
// session: a new message costs the same however long the thread is.
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
	For      flow.IDs  `json:"for"`
	N        int       `json:"n"`
	Question int64     `json:"question"` // the version of the question in the thread
	Status   string    `json:"status"`
	Stop     bool      `json:"stop"`  // the user has stopped it
	Steps    []Step    `json:"steps"` // the calls of tools so far
	Text     string    `json:"text"`  // the text since the last step
	Board    Board     `json:"board"` // a copy of the task board, for the page
	Error    string    `json:"error,omitempty"`
	Asked    time.Time `json:"asked"`
	Started  time.Time `json:"started,omitzero"`
	Tries    int       `json:"tries"` // how often a server has started to answer it
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
	Turns    = pawl.Kind[Turn]{Name: pawl.KindRequest, Label: "status"} // expires after its end: see finish
	Accounts = pawl.Kind[Account]{Name: pawl.KindUser}
	Orgs     = pawl.Kind[Limits]{Name: pawl.KindOrg}
	Secrets  = pawl.Kind[Secret]{Name: "secret"}
	Charges  = pawl.Kind[Charge]{Name: "charge", Label: "status"}
	Mails    = pawl.Kind[Mail]{Name: "mail", Label: "status"}
	Bank     = pawl.Kind[Capture]{Name: "bank"} // stands for the records of an outside bank
	Counters = pawl.Kind[Counter]{Name: "counter", TTL: time.Hour}
)

var kinds = []pawl.AnyKind{Sessions, Turns, Accounts, Orgs, Secrets, Charges, Mails, Bank, Counters}

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

// threads configures the streams of messages.
var threads = stream.Config{Name: "thread", Events: []stream.Type{stream.Of[Message]("message")}}

// messagesPerPage is the number of messages that the page loads at a time.
const messagesPerPage = 100

// sortMessages puts each answer behind its question. In the stream, other questions can be between
// the two.
func sortMessages(all []Message) {
	slices.SortFunc(all, func(a, b Message) int {
		return cmp.Or(cmp.Compare(a.N, b.N), cmp.Compare(b.Role, a.Role)) // "user", then "assistant"
	})
}
