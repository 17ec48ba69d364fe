package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// Notifications are sent after the commit, in a transaction of their own. Transactions with NOTIFY
// run one after the other in the whole database, each until it is durable, so commits must not
// contain it. The transactions of notifications need not be durable, and are short. A notification
// comes a moment after the change, so that it does not slow the next commits of its writers; changes
// meanwhile are sent with it.
//
// A commit does not wait for a notification. Notifications have a connection of their own beside the
// pool, from the first one until Close, so no call waits for that connection.
const (
	notifyPause   = 5 * time.Millisecond // before a notification; doubles while more follow
	longestNotify = 40 * time.Millisecond
	notifyTimeout = time.Second // for one
	notifyTries   = 12          // about half a minute
	maxPayload    = 7999        // bytes; PostgreSQL's limit
)

// outbox contains the hints for other processes. A goroutine sends them and ends when there are
// none.
type outbox struct {
	tries   int             // failures until it gives up, up to the next change
	running sync.WaitGroup  // the goroutine
	life    context.Context // ends with close
	end     context.CancelFunc
	conn    *pgconn.PgConn // of the goroutine, and of close after it; nil: not open

	mu      sync.Mutex // protects the fields below
	sending bool       // the goroutine runs
	pending hints.Pending
}

// hint announces that records have changed, to this process directly. It does not wait. It must be
// called after the changes are visible, or may be.
func (s *Store) hint(changed ...persist.Hint) {
	if len(changed) == 0 {
		return
	}
	s.hub.Send(changed...)
	o := &s.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending.Add(changed...)
	if !o.sending && o.life.Err() == nil {
		o.sending = true
		o.running.Go(s.sendHints)
	}
}

// hintCommit announces what c has changed, unless err, its outcome, proves that it changed nothing.
// The hints of a commit in doubt have no version. A commit that is sent again may lose to itself;
// it is then announced again, because it may have happened after the first hint.
func (s *Store) hintCommit(c persist.Commit, err error) {
	winners := lost(err)
	itself := slices.ContainsFunc(winners, func(r *persist.Record) bool { return slices.Contains(r.Commits, c.ID) })
	if errors.Is(err, persist.ErrNotApplied) || len(winners) > 0 && !itself {
		return
	}
	hints := make([]persist.Hint, 0, len(c.Writes)+len(c.Guards))
	for _, w := range c.Writes {
		h := persist.Hint{Key: w.Key}
		if err == nil || itself {
			h.Version = w.Version
		}
		hints = append(hints, h)
	}
	for _, g := range c.Guards {
		if g.Release { // moves no version
			hints = append(hints, persist.Hint{Key: g.Key})
		}
	}
	s.hint(hints...)
}

// hintLater announces what c changes when the caller's own transaction is committed. The store does
// not learn when that is, and a NOTIFY inside it would serialize such commits. So the hint is sent
// a few times, and one of them probably follows the commit. Watchers that poll notice a later one.
func (s *Store) hintLater(c persist.Commit) {
	for _, after := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second} {
		time.AfterFunc(after, func() { s.hintCommit(c, errNotYet) })
	}
}

// errNotYet makes hints without a version.
var errNotYet = errors.New("transaction not committed yet")

// take removes and returns the hints. If there are none, the sending goroutine has to end.
func (o *outbox) take() []persist.Hint {
	o.mu.Lock()
	defer o.mu.Unlock()
	hints := o.pending.Take()
	o.sending = len(hints) > 0
	return hints
}

// back puts hints back that could not be sent. After the last try it keeps only the zero hint, for
// the next change, and reports false: the sending goroutine has to end.
func (o *outbox) back(unsent []persist.Hint, last bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if last {
		unsent = []persist.Hint{{}}
		o.sending = false
	}
	o.pending.Add(unsent...)
	return !last
}

// close waits until the goroutine has tried to send the remaining hints. No further hints follow.
func (o *outbox) close() {
	o.mu.Lock() // hint may start the goroutine
	o.end()
	o.mu.Unlock()
	o.running.Wait()
	o.hangUp()
}

// sendHints sends the hints of the outbox until it is empty, or sending has failed too often.
func (s *Store) sendHints() {
	o := &s.outbox
	for failures, before := 0, notifyPause; ; {
		pause(o.life, before)
		last := o.life.Err() != nil
		hints := o.take()
		if len(hints) == 0 {
			return
		}
		if s.notify(payloads(s.id, hints)) == nil {
			failures = 0
			before = min(2*before, longestNotify)
			continue
		}
		failures++
		if !o.back(hints, last || failures == o.tries) {
			return
		}
		before = min(firstRetry<<min(failures-1, 10), longestRetry)
	}
}

// notify sends payloads. The goroutine of the outbox calls it. A connection that was open may have been
// cut while it was idle: if it fails, a new one gets the payloads at once.
func (s *Store) notify(payloads []string) error {
	reused := s.outbox.conn != nil
	err := s.notifyOnce(payloads)
	if err != nil && reused {
		err = s.notifyOnce(payloads)
	}
	return err
}

func (s *Store) notifyOnce(payloads []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
	defer cancel()
	o := &s.outbox
	if o.conn == nil {
		conn, err := s.connect(ctx, nil)
		if err != nil {
			return err
		}
		o.conn = conn
	}
	_, err := roundTrip(ctx, o.conn, s.sql.notify.query().string(s.names.channel()).strings(payloads))
	if err != nil { // the next one may find another server
		o.hangUp()
	}
	return err
}

// hangUp closes the connection, once if Close is called more than once at a time.
func (o *outbox) hangUp() {
	o.mu.Lock()
	conn := o.conn
	o.conn = nil
	o.mu.Unlock()
	if conn != nil {
		disconnect(conn)
	}
}

// notification is a payload. All releases must understand it. A payload that cannot be read, or
// without hints, is the zero hint.
type notification struct {
	From  string `json:"from"` // the id of the sending store, whose own watchers know already
	Hints []told `json:"hints,omitempty"`
}

// told is a hint.
type told struct {
	Kind    string `json:"k"`
	ID      string `json:"i"`
	Version uint64 `json:"v,omitempty"`
}

// payloads returns the notifications for hints, none longer than maxPayload. A key that is too long
// makes it the zero hint.
func payloads(from string, hints []persist.Hint) []string {
	everything := func(h persist.Hint) bool { return h.Key == (persist.Key{}) || len(payload(from, h)) > maxPayload }
	if slices.ContainsFunc(hints, everything) {
		return []string{payload(from)}
	}
	if all := payload(from, hints...); len(all) <= maxPayload {
		return []string{all}
	}
	half := len(hints) / 2
	return append(payloads(from, hints[:half]), payloads(from, hints[half:])...)
}

// payload returns the notification for hints, of any length.
func payload(from string, hints ...persist.Hint) string {
	n := notification{From: from}
	for _, h := range hints {
		n.Hints = append(n.Hints, told{Kind: h.Kind, ID: h.ID, Version: h.Version})
	}
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // which would make keys longer
	_ = encoder.Encode(n)        // cannot fail: strings and numbers
	return strings.TrimSpace(text.String())
}

// notified passes the hints of another process to the watchers of this store.
func (s *Store) notified(received *pgconn.Notification) {
	var n notification
	err := json.Unmarshal([]byte(received.Payload), &n)
	switch {
	case err != nil:
		s.hub.Send(persist.Hint{})
	case n.From == s.id:
	case len(n.Hints) == 0:
		s.hub.Send(persist.Hint{})
	default:
		hints := make([]persist.Hint, len(n.Hints))
		for i, h := range n.Hints {
			hints[i] = persist.Hint{Key: persist.Key{Kind: h.Kind, ID: h.ID}, Version: h.Version}
		}
		s.hub.Send(hints...)
	}
}
