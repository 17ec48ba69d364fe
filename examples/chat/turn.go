package main

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
)

// The life of a turn, which is a question and its answer:
//
//	ask ──► waiting ──► answering ──► done │ stopped │ failed
//	           └──────────────────────────► stopped
//
// Asking is one commit (paid for, counted, recorded, queued, and the response to the request), and so is the end (the answer, the turn, the queue; a failed
// turn is paid back). In between, whatever the model decides is recorded before it is done, and every tool knows a repeated call by its id. So a crash at
// any moment leaves an open turn, which is taken up by whoever is next. docs/chat.md has the races.
const (
	maxOpen    = 10                    // turns of a session that may wait
	maxSteps   = 8                     // rounds of tools in one turn
	maxContext = 40                    // messages that the model gets to see
	maxTries   = 50                    // servers that may die over one turn
	flushEvery = 50 * time.Millisecond // how often a growing answer is written down
)

// modelTries is how often a step is asked for before its turn fails.
var modelTries = pawl.Retry{Attempts: 4, First: 200 * time.Millisecond, Max: 2 * time.Second}

type none struct{}

// ask takes a question and sees to its answer. However often it is sent under one Idempotency-Key, and whatever crashes, it is asked and paid for once.
func (s *server) ask(w http.ResponseWriter, r *http.Request) error {
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
		if _, err := Messages.Scope(tx, messageID(ids.Session, n, "user")).SetState(ctx, question, pawl.IfAbsent()); err != nil {
			return err
		}
		if _, err := Turns.Scope(tx, ids.Request).SetState(ctx, Turn{For: ids, N: n, Status: waiting, Asked: question.At}, pawl.IfAbsent()); err != nil {
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
	ids.Request = "" // the call that serves the session has a life of its own
	if err := s.serve.Go(r.Context(), ids, none{}); err != nil {
		s.log.Warn("left to be resumed", "session", ids.Session, "err", err)
	}
	return nil
}

// spend takes credits from an account: a decision, so a function.
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

// countToday counts an answer against the organisation's limit.
func countToday(ctx context.Context, org pawl.Scope[Limits]) error {
	now := time.Now().UTC()
	day := now.Format(time.DateOnly)
	_, err := org.AtomicState(ctx, func(_ context.Context, l *Limits) error {
		if l.Used[day] >= l.PerDay {
			return &apiError{"ORG_LIMIT", http.StatusTooManyRequests}
		}
		for old := range l.Used {
			if old < now.AddDate(0, 0, -1).Format(time.DateOnly) { // yesterday it may still be elsewhere
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

// doServe is the action that answers what is open in a session, oldest first. The flow admits one at a time per session, in all processes; a
// question that arrives while this one leaves has queued a call of its own.
func (s *server) doServe(ctx context.Context, c *flow.Call, _ none) (none, error) {
	for {
		head, err := Sessions.Scope(c, c.Session).State(ctx)
		if err != nil || len(head.Open) == 0 {
			return none{}, err
		}
		ids := c.IDs
		ids.Request = head.Open[0].ID // a call inside this one, with a record of its own, by which it can be canceled
		_, err = s.answer.Do(ctx, ids, none{})
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return none{}, err
		case errors.Is(err, pawl.ErrHeld): // whoever was answering it has died, and its lease is not over yet
			if err := sleep(ctx, s.lease/20); err != nil {
				return none{}, err
			}
		case errors.Is(err, flow.ErrCanceled): // before it began: the next look finds that it is to stop
		default:
			return none{}, err
		}
	}
}

// doAnswer is the action that answers one turn, from wherever it was left.
func (s *server) doAnswer(ctx context.Context, c *flow.Call, _ none) (none, error) {
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
		return none{}, err // shutting down, or the store is away, or another took over: the turn stays open
	default:
		s.log.Error("no answer", "turn", c.Request, "err", err)
		t.Status, t.Error = failed, pawl.Code(err)
	}
	end := func(ctx context.Context, tx *pawl.Tx) error { return finish(ctx, tx, t) }
	err = pawl.Transact(context.WithoutCancel(ctx), c, end)
	if unstorable(err) { // nor will it be next time
		s.log.Error("answer cannot be kept", "turn", c.Request, "err", err)
		t.Status, t.Error, t.Text, t.Steps = failed, pawl.Code(err), "", nil
		err = pawl.Transact(context.WithoutCancel(ctx), c, end)
	}
	return none{}, err
}

// unstorable reports whether err says that a document is too large, or has what no store can keep.
func unstorable(err error) bool {
	return errors.As(err, new(*pawl.LimitError)) || errors.As(err, new(*pawl.FieldError))
}

// finish ends a turn, unless it is over.
func finish(ctx context.Context, tx *pawl.Tx, t Turn) error {
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
	if _, err := Messages.Scope(tx, messageID(t.For.Session, t.N, answer.Role)).SetState(ctx, answer, pawl.IfAbsent()); err != nil {
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

// generate lets the model and its tools take turns until the model has nothing more to ask. It keeps t as it is, or is about to be, in the store.
func (s *server) generate(ctx context.Context, c *flow.Call, t *Turn) error {
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
			System:   wishes(account),
			Messages: thread, Steps: t.Steps, Tools: tools,
		})
		if err != nil || len(calls) == 0 {
			return err
		}
		for i := range calls { // ids of our own: those of models are not always there, nor unique
			calls[i].ID = fmt.Sprintf("%s-%d-%d", c.Request, len(t.Steps), i)
		}
		t.Steps, t.Text = append(t.Steps, Step{Text: t.Text, Calls: calls}), ""
		if _, err := turn.PatchState(ctx, pawl.Patch{steps: t.Steps, text: ""}); err != nil { // decided; only then done
			return err
		}
	}
}

// wishes is what the model is told about a user.
func wishes(a Account) string {
	if name := a.Settings["name"]; name != "" {
		return strings.TrimSpace("The user is called " + name + ". " + a.Settings["instructions"])
	}
	return a.Settings["instructions"]
}

// thread returns the newest messages up to t's question.
func (s *server) thread(ctx context.Context, t *Turn) ([]Message, error) {
	var thread []Message
	for page := max(0, t.N/turnsPerPage-1); page <= t.N/turnsPerPage; page++ {
		messages, err := s.page(ctx, t.For.Session, page)
		if err != nil {
			return nil, err
		}
		thread = append(thread, messages...)
	}
	thread = slices.DeleteFunc(thread, func(m Message) bool { return m.N > t.N })
	return thread[max(0, len(thread)-maxContext):], nil
}

// askModel asks for one step, a few times if need be, and writes down the text as it grows.
func (s *server) askModel(ctx context.Context, turn pawl.Scope[Turn], t *Turn, p Prompt) (calls []Call, err error) {
	for try := 1; ; try++ {
		calls, err = s.stream(ctx, turn, t, p)
		var model *modelError
		if err == nil || !errors.As(err, &model) || pawl.IsNonRetryable(err) || ctx.Err() != nil || try == modelTries.Attempts {
			return calls, err
		}
		s.log.Warn("asking the model again", "turn", t.For.Request, "err", err)
		if err := sleep(ctx, modelTries.Delay(try)); err != nil {
			return nil, err
		}
	}
}

func (s *server) stream(ctx context.Context, turn pawl.Scope[Turn], t *Turn, p Prompt) (calls []Call, err error) {
	stored, last := t.Text, time.Now() // after a crash, or a second try, there is more in the store than the model has said
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

// runStep runs the calls of a step that were not done yet, in parallel.
func (s *server) runStep(ctx context.Context, c *flow.Call, step Step) (Step, error) {
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

// stopTurn ends a turn, whichever process answers it. What was written by then stays.
func (s *server) stopTurn(w http.ResponseWriter, r *http.Request) error {
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
			return finish(ctx, tx, t)
		}
		if t.over() {
			return nil
		}
		_, err = Turns.Scope(tx, id).PatchState(ctx, pawl.Patch{stop: true}) // should it have to be resumed
		return err
	})
	if err != nil {
		return err
	}
	if err := s.chat.Cancel(r.Context(), id); err != nil && !errors.Is(err, pawl.ErrNotFound) { // it is over, or whoever answered it is dead
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// resume sees to open turns that nobody answers, because a server died. There is at most one call per turn, in all processes: a second is refused for its id.
func (s *server) resume(ctx context.Context) {
	for ctx.Err() == nil {
		for t, err := range Turns.List(ctx, s.rt, pawl.Query{Labels: []string{waiting, answering}, Age: s.lease / 2}) {
			if err == nil {
				ids := t.ReadOnly().For
				ids.Request = "resume-" + t.ID
				err = s.serve.Go(ctx, ids, none{})
			}
			if err != nil && ctx.Err() == nil && !errors.Is(err, pawl.ErrHeld) {
				s.log.Warn("cannot resume", "err", err)
			}
		}
		_ = sleep(ctx, s.lease/2)
	}
}

// modelError is a failure of the model, in contrast to one of the store.
type modelError struct{ err error }

func (e *modelError) Error() string   { return "model: " + e.err.Error() }
func (e *modelError) Unwrap() error   { return e.err }
func (e *modelError) Code() string    { return "MODEL_FAILED" }
func (e *modelError) HTTPStatus() int { return http.StatusBadGateway }

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
