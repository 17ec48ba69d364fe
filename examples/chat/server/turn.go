package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/stream"
)

// The states of a turn, which is a question and its answer:
//
//	ask ──► waiting ──► answering ──► done │ stopped │ failed
//	           └──────────────────────────► stopped
//
// One commit asks: it takes the credit, counts the question, records and queues it, and stores the
// response to the request. One commit ends the turn: it writes the answer, the turn and the queue,
// and pays a failed turn back. In between, each step of the model is recorded before its tools run,
// and every tool recognises a repeated call by its id. So a crash at any moment leaves an open
// turn, which another server resumes. docs/chat.md lists the races.
const (
	maxOpen    = 10                    // open turns per session
	maxSteps   = 8                     // steps with tools per turn
	maxContext = 40                    // messages in a prompt
	maxTries   = 50                    // servers that start to answer one turn
	flushEvery = 50 * time.Millisecond // the interval between writes of a growing answer
)

// modelTries is the retry budget of a step.
var modelTries = pawl.Retry{Attempts: 4, First: 200 * time.Millisecond, Max: 2 * time.Second}

// none is the input or output of an action that has none.
type none struct{}

// ask records a question and queues its answer. A question is asked and paid for once per
// Idempotency-Key, also after a crash.
func (s *Server) ask(w http.ResponseWriter, r *http.Request) error {
	var in struct{ Text string }
	if err := decode(r, &in); err != nil {
		return err
	}
	if in.Text = strings.TrimSpace(in.Text); in.Text == "" || len(in.Text) > 8000 {
		return &apiError{"BAD_TEXT", http.StatusBadRequest}
	}
	me := visitorOf(r)
	ids := flow.IDs{Request: rand.Text(), Session: r.PathValue("id"), User: me.user, Org: me.org}
	err := pawl.Transact(r.Context(), s.rt, func(ctx context.Context, tx *pawl.Tx) error {
		session := Sessions.Scope(tx, ids.Session)
		head, err := ownedBy(ctx, session, ids.User)
		if err != nil {
			return err
		}
		n := head.Turns
		if len(head.Open) >= maxOpen {
			return &apiError{"TOO_MANY_WAITING", http.StatusTooManyRequests}
		}
		if head.Turns++; head.Title == "" {
			head.Title = string([]rune(in.Text)[:min(40, len([]rune(in.Text)))])
		}
		head.Open = append(head.Open, OpenTurn{ids.Request, n})
		question := Message{N: n, Role: "user", Text: in.Text, Turn: ids.Request, At: time.Now()}
		if err := spend(ctx, Accounts.Scope(tx, ids.User), 1); err != nil {
			return err
		}
		if err := countToday(ctx, Orgs.Scope(tx, ids.Org)); err != nil {
			return err
		}
		added, err := s.threads.In(tx).Append(ctx, ids.Session, stream.Any, question)
		if err != nil {
			return err
		}
		turn := Turn{For: ids, N: n, Question: added[0].Version, Status: waiting, Asked: question.At}
		if _, err := Turns.Scope(tx, ids.Request).SetState(ctx, turn, pawl.IfAbsent()); err != nil {
			return err
		}
		if _, err := session.SetState(ctx, head); err != nil {
			return err
		}
		return idempotency.Respond(ctx, tx, http.StatusAccepted, nil, map[string]any{"turn": ids.Request, "n": n})
	})
	if err != nil {
		return err
	}
	ids.Request = "" // the call serves the session, and gets an id of its own
	if err := s.serve.Go(r.Context(), ids, none{}); err != nil {
		s.log.Warn("cannot queue an answer; it will be resumed", "session", ids.Session, "err", err)
	}
	return nil
}

// spend takes credits from an account, or fails if there are too few.
func spend(ctx context.Context, account pawl.Scope[Account], n int64) error {
	_, err := account.AtomicState(ctx, func(_ context.Context, a *Account) error {
		if a.Credits < n {
			return &apiError{"INSUFFICIENT_CREDITS", http.StatusPaymentRequired}
		}
		a.Credits -= n
		return nil
	})
	return err
}

// countToday counts a question against the organisation's limit per day.
func countToday(ctx context.Context, org pawl.Scope[Limits]) error {
	now := time.Now().UTC()
	day := now.Format(time.DateOnly)
	_, err := org.AtomicState(ctx, func(_ context.Context, l *Limits) error {
		if l.Used[day] >= l.PerDay {
			return &apiError{"ORG_LIMIT", http.StatusTooManyRequests}
		}
		for old := range l.Used {
			if old < now.AddDate(0, 0, -1).Format(time.DateOnly) { // the clock of another server may still show yesterday
				delete(l.Used, old)
			}
		}
		if l.Used == nil {
			l.Used = map[string]int64{}
		}
		l.Used[day]++
		return nil
	})
	return err
}

// doServe is the action that answers the open turns of a session, oldest first. The flow admits one
// such call per session, in all processes. A question that arrives when this call ends has queued
// its own call.
func (s *Server) doServe(ctx context.Context, c *flow.Call, _ none) (none, error) {
	for {
		head, err := Sessions.Scope(c, c.Session).State(ctx)
		if err != nil || len(head.Open) == 0 {
			return none{}, err
		}
		ids := c.IDs
		ids.Request = head.Open[0].ID // a nested call with its own record, so that it can be canceled
		_, err = s.answer.Do(ctx, ids, none{})
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return none{}, err
		case errors.Is(err, pawl.ErrHeld): // its server died, and the lease is not over yet
			if err := sleep(ctx, s.lease/20); err != nil {
				return none{}, err
			}
		case errors.Is(err, flow.ErrCanceled): // canceled before it began: the next run finds Stop set
		default:
			return none{}, err
		}
	}
}

// doAnswer is the action that answers one turn. It continues where a dead server stopped.
func (s *Server) doAnswer(ctx context.Context, c *flow.Call, _ none) (none, error) {
	var t Turn
	_, err := Turns.Scope(c, c.Request).AtomicState(ctx, func(_ context.Context, turn *Turn) error {
		if turn.Status == waiting {
			turn.Status, turn.Started = answering, time.Now()
		}
		if !turn.over() {
			turn.Tries++
		}
		t = *turn
		return nil
	}, pawl.IfExists())
	if err != nil || t.over() {
		return none{}, err
	}
	switch {
	case t.Stop:
		err = flow.ErrCanceled
	case t.Tries > maxTries:
		err = &apiError{"GAVE_UP", http.StatusInternalServerError}
	default:
		err = s.generate(ctx, c, &t)
	}
	switch {
	case err == nil:
		t.Status = done
	case errors.Is(err, flow.ErrCanceled) || errors.Is(context.Cause(ctx), flow.ErrCanceled):
		t.Status = stopped
		if err := s.endCharges(context.WithoutCancel(ctx), c, t); err != nil {
			return none{}, err
		}
	case ctx.Err() != nil || pawl.IsRetryable(err) || pawl.OutcomeUnknown(err) || errors.Is(err, pawl.ErrLeaseLost):
		return none{}, err // shutdown, store down, or another server took over: the turn stays open
	default:
		s.log.Error("turn failed", "turn", c.Request, "err", err)
		t.Status, t.Error = failed, pawl.Code(err)
	}
	end := func(ctx context.Context, tx *pawl.Tx) error { return s.finish(ctx, tx, t) }
	err = pawl.Transact(context.WithoutCancel(ctx), c, end)
	if unstorable(err) { // a retry would fail as well
		s.log.Error("cannot store the answer", "turn", c.Request, "err", err)
		t.Status, t.Error, t.Text, t.Steps = failed, pawl.Code(err), "", nil
		err = pawl.Transact(context.WithoutCancel(ctx), c, end)
	}
	return none{}, err
}

// unstorable reports whether err says that a document is too large, or has a value that cannot be
// stored.
func unstorable(err error) bool {
	return errors.As(err, new(*pawl.LimitError)) || errors.As(err, new(*pawl.FieldError))
}

// finish ends a turn with the status and content of t, unless the turn is over.
func (s *Server) finish(ctx context.Context, tx *pawl.Tx, t Turn) error {
	turn := Turns.Scope(tx, t.For.Request)
	now, err := turn.State(ctx)
	if err != nil || now.over() {
		return err
	}
	t.Board = now.Board
	if _, err := turn.SetState(ctx, t, pawl.WithTTL(24*time.Hour)); err != nil {
		return err
	}
	answer := Message{N: t.N, Role: "assistant", Text: t.Text, Turn: t.For.Request, Status: t.Status, Steps: t.Steps, At: time.Now()}
	if _, err := s.threads.In(tx).Append(ctx, t.For.Session, stream.Any, answer); err != nil {
		return err
	}
	if t.Status == failed {
		if _, err := Accounts.Scope(tx, t.For.User).IncState(ctx, credits, 1); err != nil {
			return err
		}
	}
	_, err = Sessions.Scope(tx, t.For.Session).AtomicState(ctx, func(_ context.Context, head *Session) error {
		head.Open = slices.DeleteFunc(head.Open, func(o OpenTurn) bool { return o.ID == t.For.Request })
		return nil
	})
	return err
}

// generate runs the model and its tools in turn, until an answer of the model has no calls. It
// updates t together with the stored turn.
func (s *Server) generate(ctx context.Context, c *flow.Call, t *Turn) error {
	turn := Turns.Scope(c, c.Request)
	thread, err := s.thread(ctx, t)
	if err != nil {
		return err
	}
	account, err := Accounts.Scope(c, c.User).State(ctx)
	if err != nil {
		return err
	}
	for {
		if n := len(t.Steps); n > 0 && slices.ContainsFunc(t.Steps[n-1].Calls, func(c Call) bool { return !c.Done }) {
			if t.Steps[n-1], err = s.runStep(ctx, c, t.Steps[n-1]); err != nil {
				return err
			}
			if _, err := turn.PatchState(ctx, pawl.Patch{steps: t.Steps}); err != nil {
				return err
			}
		}
		if len(t.Steps) == maxSteps {
			return &apiError{"TOO_MANY_STEPS", http.StatusBadGateway}
		}
		calls, err := s.askModel(ctx, turn, t, Prompt{
			Key:      fmt.Sprintf("%s-%d", c.Request, len(t.Steps)),
			System:   instructions(account),
			Messages: thread, Steps: t.Steps, Tools: tools,
		})
		if err != nil || len(calls) == 0 {
			return err
		}
		for i := range calls { // the ids of models may be missing or repeated
			calls[i].ID = fmt.Sprintf("%s-%d-%d", c.Request, len(t.Steps), i)
		}
		t.Steps, t.Text = append(t.Steps, Step{Text: t.Text, Calls: calls}), ""
		if _, err := turn.PatchState(ctx, pawl.Patch{steps: t.Steps, text: ""}); err != nil { // recorded before the tools run
			return err
		}
	}
}

// instructions returns the system prompt for a user.
func instructions(a Account) string {
	if name := a.Settings["name"]; name != "" {
		return strings.TrimSpace("The user is called " + name + ". " + a.Settings["instructions"])
	}
	return a.Settings["instructions"]
}

// thread returns the last messages up to the question of t. In the stream, answers to earlier
// questions can be behind it, and so can later questions: up to maxOpen turns overlap.
func (s *Server) thread(ctx context.Context, t *Turn) ([]Message, error) {
	var thread []Message
	from := max(0, t.Question-maxContext-2*maxOpen)
	for e, err := range s.threads.Read(ctx, t.For.Session, stream.Query{From: from}) {
		if err != nil {
			return nil, err
		}
		if m := e.Data.(Message); m.N <= t.N {
			thread = append(thread, m)
		}
	}
	sortMessages(thread)
	return thread[max(0, len(thread)-maxContext):], nil
}

// askModel asks the model for one step, and again after an error that is not final.
func (s *Server) askModel(ctx context.Context, turn pawl.Scope[Turn], t *Turn, p Prompt) (calls []Call, err error) {
	for try := 1; ; try++ {
		calls, err = s.streamAnswer(ctx, turn, t, p)
		var model *modelError
		if err == nil || !errors.As(err, &model) || pawl.IsNonRetryable(err) || ctx.Err() != nil || try == modelTries.Attempts {
			return calls, err
		}
		s.log.Warn("model failed; retrying", "turn", t.For.Request, "err", err)
		if err := sleep(ctx, modelTries.Delay(try)); err != nil {
			return nil, err
		}
	}
}

// streamAnswer asks the model once, and stores the text as it grows. After a crash or an error, the
// store has more text than the new answer; it is kept until the new answer is longer.
func (s *Server) streamAnswer(ctx context.Context, turn pawl.Scope[Turn], t *Turn, p Prompt) (calls []Call, err error) {
	stored, last := t.Text, time.Now()
	t.Text = ""
	for delta, err := range s.model.Answer(ctx, p) {
		if err != nil {
			return nil, &modelError{err}
		}
		if delta.Call != nil {
			calls = append(calls, *delta.Call)
			continue
		}
		t.Text += delta.Text
		if strings.HasPrefix(stored, t.Text) || time.Since(last) < flushEvery {
			continue
		}
		if _, err := turn.PatchState(ctx, pawl.Patch{text: t.Text}); err != nil {
			return nil, err
		}
		stored, last = t.Text, time.Now()
	}
	return calls, ctx.Err()
}

// runStep runs the calls of a step that are not done, in parallel.
func (s *Server) runStep(ctx context.Context, c *flow.Call, step Step) (Step, error) {
	g, ctx := errgroup.WithContext(ctx)
	for i := range step.Calls {
		call := &step.Calls[i]
		if call.Done {
			continue
		}
		g.Go(func() (err error) {
			if call.Result, err = s.runTool(ctx, c, *call); unstorable(err) {
				call.Result, err = "refused: "+pawl.Code(err), nil
			}
			call.Done = err == nil
			return err
		})
	}
	return step, g.Wait()
}

// stopTurn ends a turn, in any process. The text written so far stays.
func (s *Server) stopTurn(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if _, err := s.ownTurn(r); err != nil {
		return err
	}
	err := pawl.Transact(r.Context(), s.rt, func(ctx context.Context, tx *pawl.Tx) error {
		t, err := Turns.Scope(tx, id).State(ctx)
		if err != nil {
			return err
		}
		if t.Status == waiting {
			t.Status = stopped
			return s.finish(ctx, tx, t)
		}
		if t.over() {
			return nil
		}
		_, err = Turns.Scope(tx, id).PatchState(ctx, pawl.Patch{stop: true}) // for a server that resumes the turn
		return err
	})
	if err != nil {
		return err
	}
	// ErrNotFound: the turn is over, or its server died.
	if err := s.chat.Cancel(r.Context(), id); err != nil && !errors.Is(err, pawl.ErrNotFound) {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// resume queues a call for each open turn that no server has written to for a while. There is at
// most one such call per turn, in all processes: a second one is refused because of its request id.
func (s *Server) resume(ctx context.Context) {
	for ctx.Err() == nil {
		for t, err := range Turns.List(ctx, s.rt, pawl.Query{Labels: []string{waiting, answering}, Age: s.lease / 2}) {
			if err == nil {
				ids := t.ReadOnly().For
				ids.Request = "resume-" + t.ID
				err = s.serve.Go(ctx, ids, none{})
			}
			if err != nil && ctx.Err() == nil && !errors.Is(err, pawl.ErrHeld) {
				s.log.Warn("cannot resume a turn", "err", err)
			}
		}
		_ = sleep(ctx, s.lease/2)
	}
}

// modelError is an error of the model, as opposed to one of the store.
type modelError struct{ err error }

func (e *modelError) Error() string   { return "model: " + e.err.Error() }
func (e *modelError) Unwrap() error   { return e.err }
func (e *modelError) Code() string    { return "MODEL_FAILED" }
func (e *modelError) HTTPStatus() int { return http.StatusBadGateway }

// sleep waits for d, or returns the cause of the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
