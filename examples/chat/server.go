package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/pawl-go/pawl"
)

// Thread is the state of a session.
type Thread struct {
	Owner    string    `json:"owner"`
	Title    string    `json:"title"`
	Messages []Message `json:"messages"`
}

type Message struct {
	Role string `json:"role"`
	Text string `json:"text"`
}

// Account is the state of a user.
type Account struct {
	Used     int64             `json:"used"` // messages paid for
	Settings map[string]string `json:"settings"`
}

// Board is where the parallel tool calls of one answer leave their results.
type Board struct {
	Results map[string]string `json:"results"`
	Done    int               `json:"done"`
}

const freeMessages = 100

var (
	Threads  = pawl.Kind[Thread]{Name: pawl.KindSession, Label: "owner"}
	Accounts = pawl.Kind[Account]{Name: pawl.KindUser}
)

// The fields that the verbs below address, checked when the program starts.
var (
	messages = Threads.MustField("messages")
	title    = Threads.MustField("title")
)

func routes(rt *pawl.Runtime) http.Handler {
	s := &server{rt}
	mux := http.NewServeMux()
	mux.Handle("POST /sessions/{id}/messages", handler(s.postMessage))
	mux.Handle("GET /sessions/{id}", handler(s.getSession))
	mux.Handle("PATCH /sessions/{id}", handler(s.patchSession))
	mux.Handle("GET /sessions", handler(s.listSessions))
	return mux
}

type server struct{ rt *pawl.Runtime }

// postMessage takes a message and answers it. However many arrive at once, here and in other processes, all of them are in the
// thread afterwards, and each was paid for once.
func (s *server) postMessage(w http.ResponseWriter, r *http.Request) error {
	var in Message
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return &apiError{"BAD_REQUEST", http.StatusBadRequest}
	}
	user, thread := r.Header.Get("X-User"), Threads.Scope(s.rt, r.PathValue("id"))
	err := pawl.Transact(r.Context(), s.rt, func(ctx context.Context, tx *pawl.Tx) error { // paid for and recorded, or neither
		if err := charge(ctx, Accounts.Scope(tx, user)); err != nil {
			return err
		}
		_, err := thread.In(tx).Apply(ctx, pawl.All{
			pawl.Patch{"owner": user},
			pawl.Push{Field: messages, Values: []any{Message{Role: "user", Text: in.Text}}},
		})
		return err
	})
	if err != nil {
		return err
	}
	reply, err := s.answer(r.Context(), in.Text)
	if err != nil {
		return err
	}
	snap, err := thread.PushState(r.Context(), messages, reply)
	if err != nil {
		return err
	}
	return respond(w, snap.Version, reply)
}

// charge counts a message against the user's allowance: a decision, so a function.
func charge(ctx context.Context, account pawl.Scope[Account]) error {
	_, err := account.AtomicState(ctx, func(_ context.Context, a *Account) error {
		if a.Used >= freeMessages {
			return &apiError{"INSUFFICIENT_CREDITS", http.StatusPaymentRequired}
		}
		a.Used++
		return nil
	})
	return err
}

// answer calls its tools in parallel; they meet on a board that lives as long as the request.
func (s *server) answer(ctx context.Context, question string) (Message, error) {
	request := pawl.NewLocal(s.rt)
	defer request.Close()
	board := pawl.Sequencer[Board](request, "board")
	var wg sync.WaitGroup
	errs := make(chan error, 2)
	for name, tool := range map[string]func(string) string{"shout": strings.ToUpper, "count": func(q string) string { return fmt.Sprint(len(q)) }} {
		wg.Go(func() {
			_, err := board.Apply(ctx, pawl.All{
				pawl.SetRecord{Field: "results", Key: name, Value: tool(question)},
				pawl.Inc{Field: "done", By: 1},
			})
			errs <- err
		})
	}
	wg.Wait()
	for range 2 {
		if err := <-errs; err != nil {
			return Message{}, err
		}
	}
	b, err := board.State(ctx)
	return Message{Role: "assistant", Text: fmt.Sprintf("%s (%s characters)", b.Results["shout"], b.Results["count"])}, err
}

func (s *server) getSession(w http.ResponseWriter, r *http.Request) error {
	snap, err := Threads.Scope(s.rt, r.PathValue("id")).Snapshot(r.Context())
	if err != nil {
		return err
	}
	if !snap.Exists() {
		return pawl.ErrNotFound
	}
	return respond(w, snap.Version, snap.ReadOnly())
}

// patchSession renames a session; with If-Match only if nobody changed it since.
func (s *server) patchSession(w http.ResponseWriter, r *http.Request) error {
	var in struct{ Title string }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return &apiError{"BAD_REQUEST", http.StatusBadRequest}
	}
	opts := []pawl.Option{pawl.IfExists()}
	var version uint64
	if _, err := fmt.Sscanf(r.Header.Get("If-Match"), `"%d"`, &version); err == nil {
		opts = append(opts, pawl.IfVersion(version))
	}
	snap, err := Threads.Scope(s.rt, r.PathValue("id")).PatchState(r.Context(), pawl.Patch{title: in.Title}, opts...)
	if err != nil {
		return err
	}
	return respond(w, snap.Version, snap.ReadOnly())
}

func (s *server) listSessions(w http.ResponseWriter, r *http.Request) error {
	found := []string{}
	for thread, err := range Threads.List(r.Context(), s.rt, pawl.Query{Labels: []string{r.Header.Get("X-User")}}) {
		if err != nil {
			return err
		}
		found = append(found, thread.ID)
	}
	return json.NewEncoder(w).Encode(found)
}

func respond(w http.ResponseWriter, version uint64, body any) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("ETag", fmt.Sprintf("%q", fmt.Sprint(version)))
	return json.NewEncoder(w).Encode(body)
}

// handler turns errors into answers: one place, no type switch.
type handler func(http.ResponseWriter, *http.Request) error

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := h(w, r)
	if err == nil {
		return
	}
	if pawl.IsRetryable(err) {
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, pawl.Code(err), pawl.HTTPStatus(err))
}

// apiError is an error of this server's own; pawl.Code and pawl.HTTPStatus know it as pawl.Coded.
type apiError struct {
	code   string
	status int
}

func (e *apiError) Error() string   { return e.code }
func (e *apiError) Code() string    { return e.code }
func (e *apiError) HTTPStatus() int { return e.status }
