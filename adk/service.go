package adk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/stream"
	"google.golang.org/adk/v2/platform"
	"google.golang.org/adk/v2/session"
)

// Policy says what a handle must have seen for AppendEvent. Both policies refuse, with ErrStale, to
// write a key of any prefix that was read through the handle and has changed in the store since. Keys
// that were not read are written as they are, and increments are added; see Inc.
type Policy int

const (
	// WholeSession refuses a handle that has not seen every event of its session, as ADK's database
	// service means to. So one turn at a time gets through, and the history is that of one writer.
	WholeSession Policy = iota
	// ByKey lets the events of several handles interleave, as ADK's in-memory service does.
	ByKey
)

// Config configures a Service; its zero value is ready to use.
type Config struct {
	// Policy says what AppendEvent refuses. 0 means WholeSession.
	Policy Policy
}

// Service is a session.Service on a runtime. Its methods are safe for concurrent use, in any number
// of processes. Besides the errors that their comments name they return those of pawl.Transact, such
// as *pawl.UnavailableError.
type Service struct {
	rt     *pawl.Runtime
	config Config
	log    *stream.Log
	piece  int           // bytes of an event above which it is stored in pieces
	resume time.Duration // age of the work of another Delete that this one finishes
}

var _ session.Service = (*Service)(nil)

// New returns a service on a runtime, which should know Kinds. It does no I/O. It returns
// pawl.ErrNoStore for a runtime without a store, and *pawl.ArgumentError for an unknown policy.
func New(rt *pawl.Runtime, c Config) (*Service, error) {
	if c.Policy != WholeSession && c.Policy != ByKey {
		return nil, &pawl.ArgumentError{Argument: "Config.Policy", Reason: fmt.Sprintf("unknown policy %d", c.Policy)}
	}
	log, err := stream.New(rt, stream.Config{Name: streams})
	if err != nil {
		return nil, err
	}
	return &Service{rt: rt, config: c, log: log, piece: rt.MaxDoc() / 2, resume: time.Minute}, nil
}

// Create makes a session, and applies the keys of its state to the app and to the user. Without an id
// it makes one up. If the session exists, it returns an error that matches pawl.ErrExists. It returns
// *pawl.ArgumentError for a name that is not UTF-8 or contains U+0000, and *pawl.FieldError or
// *pawl.LimitError for a state that no store can keep.
func (s *Service) Create(ctx context.Context, req *session.CreateRequest) (*session.CreateResponse, error) {
	if req == nil {
		return nil, errNoRequest
	}
	if req.AppName == "" || req.UserID == "" {
		return nil, fmt.Errorf("app_name and user_id are required, got app_name: %q, user_id: %q", req.AppName, req.UserID)
	}
	id := req.SessionID
	if id == "" {
		id = platform.NewUUID(ctx)
	}
	if err := checkNames(req.AppName, req.UserID, id); err != nil {
		return nil, err
	}
	d, err := newDelta(req.State)
	if err != nil {
		return nil, err
	}
	key := sessionID(req.AppName, req.UserID, id)
	events, write := newStream(key), newWrite()
	now := platform.Now(ctx).Truncate(time.Microsecond)
	var app, user pawl.Snapshot[shared]
	err = pawl.ReadAll(ctx, apps.Scope(s.rt, appID(req.AppName)).Into(&app), users.Scope(s.rt, userID(req.AppName, req.UserID)).Into(&user))
	if err != nil {
		return nil, err
	}
	var made *handle
	err = pawl.Transact(ctx, s.rt, func(ctx context.Context, tx *pawl.Tx) (err error) {
		sums := map[string]any{}
		inApp, inUser, err := s.applyShared(ctx, tx, req.AppName, req.UserID, d, write, sums)
		if err != nil {
			return err
		}
		hd := head{App: req.AppName, User: req.UserID, ID: id, Stream: events, Updated: now}
		scope := sessions.Scope(tx, key)
		if err := d.own.apply(&hd.State, write, "", scope.Key(), sums); err != nil {
			return err
		}
		if inApp == nil {
			inApp = app.ReadOnly()
		}
		if inUser == nil {
			inUser = user.ReadOnly()
		}
		if made, err = newHandle(&hd, inApp, inUser); err != nil {
			return err
		}
		for key, v := range req.State { // as in ADK, the creator sees the values that it gave
			if _, sum := sums[key]; !sum {
				if _, stored := made.state[key]; stored {
					made.state[key] = v
				}
			}
		}
		_, err = scope.SetState(ctx, hd, pawl.IfAbsent())
		return err
	})
	if errors.Is(err, pawl.ErrExists) {
		return nil, &existsError{id}
	}
	if err != nil {
		return nil, err
	}
	return &session.CreateResponse{Session: made}, nil
}

// applyShared applies a delta to the documents of the app and of the user. It returns those that it
// has changed, nil for the others.
func (s *Service) applyShared(ctx context.Context, tx *pawl.Tx, app, user string, d delta, write string, sums map[string]any) (inApp, inUser *shared, err error) {
	put := func(scope pawl.Scope[shared], c changes, prefix, user string) (*shared, error) {
		if len(c) == 0 {
			return nil, nil
		}
		var whole shared
		apply := func(_ context.Context, doc *shared) error {
			doc.App, doc.User = app, user
			err := c.apply(&doc.State, write, prefix, scope.Key(), sums)
			whole = *doc
			return err
		}
		_, err := scope.AtomicState(ctx, apply)
		if errors.Is(err, pawl.ErrDeleted) { // erased: the user is back
			_, err = scope.AtomicState(ctx, apply, pawl.IfAbsent())
		}
		return &whole, err
	}
	if inApp, err = put(apps.Scope(tx, appID(app)), d.app, session.KeyPrefixApp, ""); err != nil {
		return nil, nil, err
	}
	inUser, err = put(users.Scope(tx, userID(app, user)), d.user, session.KeyPrefixUser, user)
	return inApp, inUser, err
}

// Get returns a session as it was at one moment, with its last NumRecentEvents events (0: all) that
// are not before After (zero: all). It returns ErrNotFound for a session that does not exist.
func (s *Service) Get(ctx context.Context, req *session.GetRequest) (*session.GetResponse, error) {
	if req == nil {
		return nil, errNoRequest
	}
	if err := checkKey(req.AppName, req.UserID, req.SessionID); err != nil {
		return nil, err
	}
	for missing := ""; ; {
		var app, user pawl.Snapshot[shared]
		var own pawl.Snapshot[head]
		err := pawl.ReadAll(ctx,
			sessions.Scope(s.rt, sessionID(req.AppName, req.UserID, req.SessionID)).Into(&own),
			apps.Scope(s.rt, appID(req.AppName)).Into(&app),
			users.Scope(s.rt, userID(req.AppName, req.UserID)).Into(&user))
		if err != nil {
			return nil, err
		}
		if !own.Exists() {
			return nil, fmt.Errorf("%w: %q", ErrNotFound, req.SessionID)
		}
		hd := own.ReadOnly()
		events, whole, err := s.readEvents(ctx, hd, req.NumRecentEvents, req.After)
		if err != nil {
			return nil, err
		}
		if !whole { // deleted meanwhile, or the store has lost some
			if hd.Stream == missing {
				return nil, fmt.Errorf("events of session %s are missing", req.SessionID)
			}
			missing = hd.Stream
			continue
		}
		h, err := newHandle(hd, app.ReadOnly(), user.ReadOnly())
		if err != nil {
			return nil, err
		}
		h.events = events
		return &session.GetResponse{Session: h}, nil
	}
}

// checkKey checks the names of a session that should exist.
func checkKey(app, user, id string) error {
	if app == "" || user == "" || id == "" {
		return fmt.Errorf("app_name, user_id, session_id are required, got app_name: %q, user_id: %q, session_id: %q", app, user, id)
	}
	return checkNames(app, user, id)
}

// List returns the sessions of an app, or of one of its users, with their state and without events.
// Sessions that are written during the call may be in an older or a newer state.
func (s *Service) List(ctx context.Context, req *session.ListRequest) (*session.ListResponse, error) {
	if req == nil {
		return nil, errNoRequest
	}
	if req.AppName == "" {
		return nil, fmt.Errorf("app_name is required, got app_name: %q", req.AppName)
	}
	if err := checkNames(req.AppName, req.UserID, ""); err != nil {
		return nil, err
	}
	// Sessions first: the state of a user is then not older than the sessions that show it.
	prefix, usersAt := appID(req.AppName)+"/", appID(req.AppName)+"/"
	if req.UserID != "" {
		usersAt = userID(req.AppName, req.UserID)
		prefix = usersAt + "/"
	}
	var found []*head
	for snap, err := range sessions.List(ctx, s.rt, pawl.Query{Prefix: prefix}) {
		if err != nil {
			return nil, err
		}
		found = append(found, snap.ReadOnly())
	}
	app, err := apps.Scope(s.rt, appID(req.AppName)).Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	byUser := map[string]*shared{}
	if req.UserID != "" {
		user, err := users.Scope(s.rt, usersAt).Snapshot(ctx)
		if err != nil {
			return nil, err
		}
		byUser[req.UserID] = user.ReadOnly()
	} else {
		for snap, err := range users.List(ctx, s.rt, pawl.Query{Prefix: usersAt}) {
			if err != nil {
				return nil, err
			}
			byUser[snap.ReadOnly().User] = snap.ReadOnly()
		}
	}
	all := make([]session.Session, len(found))
	for i, hd := range found {
		h, err := newHandle(hd, app.ReadOnly(), byUser[hd.User])
		if err != nil {
			return nil, err
		}
		all[i] = h
	}
	return &session.ListResponse{Sessions: all}, nil
}
