package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/persist"
)

// Notifications are sent after the commit, in a transaction of their own: those that notify take turns
// in all of the database, each until it is durable, and commits would, too. Theirs need not be durable,
// and so are short. What changes while one is sent is collected, and sent together.
//
// A commit does not wait for a notification. To send one, a connection is taken from the pool only
// while it has one to spare, so that nobody is in line for it. When it has had none for a while, a
// connection is made for one notification, so that hints are not held up for ever either.
const (
	notifyPause   = 5 * time.Millisecond // between two, longer each time while there is always more to tell
	longestNotify = 40 * time.Millisecond
	notifyTimeout = time.Second // for one
	sparePatience = time.Second // until the pool has a connection to spare
	notifyTries   = 12          // half a minute
	maxOutbox     = 1024        // keys; beyond that, anything may have changed
	maxPayload    = 7999        // bytes; PostgreSQL's limit
)

// outbox holds the hints that are to be sent to other processes. A goroutine sends them, and ends
// when there are none.
type outbox struct {
	tries   int            // before it gives up until something else changes
	running sync.WaitGroup // the goroutine
	closing chan struct{}  // closed by close

	mu       sync.Mutex // protects what follows
	sending  bool       // there is a goroutine
	closed   bool
	any      bool                   // anything may have changed, which says it all
	versions map[persist.Key]uint64 // 0: not told
}

// hint tells everybody that records have changed, those in this process directly. It does not wait,
// and must be called once the changes can be seen, or may be.
func (s *Store) hint(hints ...persist.Hint) {
	if len(hints) == 0 {
		return
	}
	s.hub.Send(hints...)
	o := &s.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(hints)
	if !o.sending && !o.closed {
		o.sending = true
		o.running.Go(s.sendHints)
	}
}

// hintCommit hints at what c has changed, unless err, its outcome, says that it has changed nothing.
// While the outcome is in doubt, the versions are, too, and are not told. When the commit is sent again
// it may lose to itself, and then is hinted at again: it may have happened after the first hint.
func (s *Store) hintCommit(c persist.Commit, err error) {
	winners := lost(err)
	itself := slices.ContainsFunc(winners, func(r persist.Record) bool { return slices.Contains(r.Commits, c.ID) })
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
		if g.Release { // which moves no version
			hints = append(hints, persist.Hint{Key: g.Key})
		}
	}
	s.hint(hints...)
}

// hintLater hints at what c will have changed once a transaction of the caller's own is committed. When that is, nobody tells: a NOTIFY
// inside it would, but makes such commits take turns. So the hint is given some times, and one of them
// probably comes soon after; a transaction that lasts longer is noticed by those who look from time to time.
func (s *Store) hintLater(c persist.Commit) {
	for _, after := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second} {
		time.AfterFunc(after, func() { s.hintCommit(c, errNotYet) })
	}
}

// errNotYet leaves an outcome in doubt, so that no version is told.
var errNotYet = errors.New("the transaction was not committed yet")

// add merges hints with what is to be sent. One that does not tell the version wins: who knows the
// version that another tells would take it for old news.
func (o *outbox) add(hints []persist.Hint) {
	for _, h := range hints {
		if o.any {
			return
		}
		known, pending := o.versions[h.Key]
		switch {
		case h.Key == persist.Key{} || !pending && len(o.versions) == maxOutbox:
			o.any, o.versions = true, nil
		case !pending:
			if o.versions == nil {
				o.versions = make(map[persist.Key]uint64)
			}
			o.versions[h.Key] = h.Version
		case known == 0 || h.Version == 0:
			o.versions[h.Key] = 0
		default:
			o.versions[h.Key] = max(known, h.Version)
		}
	}
}

// take removes what is to be sent. When that is nothing, the goroutine that asks has to end.
func (o *outbox) take() []persist.Hint {
	o.mu.Lock()
	defer o.mu.Unlock()
	var hints []persist.Hint
	if o.any {
		hints = append(hints, persist.Hint{})
	}
	for key, version := range o.versions {
		hints = append(hints, persist.Hint{Key: key, Version: version})
	}
	o.any, o.versions = false, nil
	o.sending = len(hints) > 0
	return hints
}

// back puts hints back that could not be sent. After the last try it reports false, the goroutine
// that asks has to end, and the next one has to say that anything may have changed.
func (o *outbox) back(hints []persist.Hint, last bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if last {
		hints = []persist.Hint{{}}
		o.sending = false
	}
	o.add(hints)
	return !last
}

// pause waits for d, or until the outbox closes.
func (o *outbox) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-o.closing:
	}
}

func (o *outbox) isClosing() bool {
	select {
	case <-o.closing:
		return true
	default:
		return false
	}
}

// close returns when what is to be sent was tried to be sent. Nothing changes any more.
func (o *outbox) close() {
	o.mu.Lock()
	if !o.closed {
		o.closed = true
		close(o.closing)
	}
	o.mu.Unlock()
	o.running.Wait()
}

// sendHints sends what is in the outbox, until it is empty or nothing can be sent.
func (s *Store) sendHints() {
	o := &s.outbox
	for failures, pause := 0, notifyPause; ; {
		spare := s.awaitSpare()
		last := o.isClosing()
		hints := o.take()
		if len(hints) == 0 {
			return
		}
		if s.notify(payloads(s.id, hints), spare) == nil {
			failures = 0
			o.pause(pause)
			pause = min(2*pause, longestNotify)
			continue
		}
		failures++
		if !o.back(hints, last || failures == o.tries) {
			return
		}
		o.pause(min(firstRetry<<min(failures-1, 10), longestRetry))
	}
}

// awaitSpare waits until the pool has a connection to spare, and reports false if it has none.
func (s *Store) awaitSpare() bool {
	for deadline := time.Now().Add(sparePatience); ; s.outbox.pause(notifyPause) {
		stat := s.pool.Stat()
		if stat.AcquiredConns()+stat.ConstructingConns() < stat.MaxConns() {
			return true
		}
		if time.Now().After(deadline) || s.outbox.isClosing() {
			return false
		}
	}
}

// notify sends payloads, on a connection of the pool if it has one to spare.
func (s *Store) notify(payloads []string, spare bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
	defer cancel()
	if !spare {
		conn, err := s.connect(ctx, nil)
		if err != nil {
			return err
		}
		defer disconnect(conn)
		_, err = roundTrip(ctx, conn, query(s.sql.notify.text).string(s.names.channel()).strings(payloads))
		return err
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	_, err = repeatable(ctx, conn.Conn().PgConn(), s.sql.notify.query().string(s.names.channel()).strings(payloads))
	release(conn, err)
	return err
}

// notification is a payload. Processes of every release must understand it; whoever does not, or
// finds no hints in it, takes it for the zero hint.
type notification struct {
	From  string `json:"from"` // the id of the store, which has told its own watchers already
	Hints []told `json:"hints,omitempty"`
}

// told is a hint.
type told struct {
	Kind    string `json:"k"`
	ID      string `json:"i"`
	Version uint64 `json:"v,omitempty"`
}

// payloads returns the notifications for hints, none of which is too long. A key that has no room
// in one may be any.
func payloads(from string, hints []persist.Hint) []string {
	var all []string
	head, tail := `{"from":`+encoded(from)+`,"hints":[`, `]}`
	var body, one []byte
	for _, h := range hints {
		one = appendTold(one[:0], h)
		if h.Key == (persist.Key{}) || len(head)+len(one)+len(tail) > maxPayload {
			return []string{encoded(notification{From: from})}
		}
		if len(body) > 0 && len(head)+len(body)+len(",")+len(one)+len(tail) > maxPayload {
			all, body = append(all, head+string(body)+tail), body[:0]
		}
		if len(body) > 0 {
			body = append(body, ',')
		}
		body = append(body, one...)
	}
	return append(all, head+string(body)+tail)
}

// appendTold appends h in JSON. Most names need no quoting.
func appendTold(to []byte, h persist.Hint) []byte {
	if !plain(h.Kind) || !plain(h.ID) || h.Version == 0 {
		return append(to, encoded(told{Kind: h.Kind, ID: h.ID, Version: h.Version})...)
	}
	to = append(append(append(to, `{"k":"`...), h.Kind...), `","i":"`...)
	to = append(append(to, h.ID...), `","v":`...)
	return append(strconv.AppendUint(to, h.Version, 10), '}')
}

// plain reports whether name is written as it is in JSON.
func plain(name string) bool {
	for _, c := range []byte(name) {
		if c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// encoded is v in JSON.
func encoded(v any) string {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(v) // strings and numbers only
	return string(bytes.TrimSpace(text.Bytes()))
}

// notified tells all who watch what another process has sent.
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
