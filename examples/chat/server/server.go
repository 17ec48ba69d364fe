// Package server is the chat server of examples/chat, for programs that add something to it.
// [Command] is the whole program, and [New] a server for a program with flags of its own.
//
// Read state.go first (the documents and the stream), then turn.go (a question and its answer),
// tools.go (calls that must not happen twice), and server.go (the HTTP API).
package server

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/inspect"
	"github.com/pawl-go/pawl/sse"
	"github.com/pawl-go/pawl/stream"
)

//go:embed page
var pageFiles embed.FS

// Server answers the questions of users over HTTP. It holds what the handlers share.
type Server struct {
	rt        *pawl.Runtime
	model     Model
	log       *slog.Logger
	stats     *stats
	secret    []byte                        // signs cookies
	quit      context.Context               // all streams end with it
	hangUp    func()                        // ends quit
	toolDelay time.Duration                 // the simulated delay of outside services
	lease     time.Duration                 // the length of the leases of calls, claims and idempotency keys
	inspect   bool                          // serve /pawl/
	workers   []inspect.Workers             // for /pawl/
	opened    []func(context.Context) error // what Close stops, in reverse order

	threads *stream.Log // the messages of each session
	keys    *idempotency.Keys
	chat    *flow.Flow
	serve   *flow.Action[none, none]
	answer  *flow.Action[none, none]
	bench   *flow.Flow
	contend *flow.Action[none, contest]
	charges *machine.Machine[Charge]
	mails   *machine.Machine[Mail]
}

// Handler returns the handler of the server: the page and its API.
func (s *Server) Handler() http.Handler {
	once := s.keys.Middleware // answers a repeated request with the response to the first one
	api := http.NewServeMux()
	for pattern, h := range map[string]http.Handler{
		"GET /api/me":                      handler(s.getMe),
		"PUT /api/settings/{name}":         handler(s.putSetting),
		"GET /api/sessions":                handler(s.listSessions),
		"POST /api/sessions":               once(handler(s.newSession)),
		"PATCH /api/sessions/{id}":         handler(s.renameSession),
		"GET /api/sessions/{id}/messages":  handler(s.getMessages),
		"POST /api/sessions/{id}/messages": once(handler(s.ask)),
		"DELETE /api/turns/{id}":           handler(s.stopTurn),
		"GET /api/sessions/{id}/panel":     handler(s.getPanel),
		"POST /api/contention":             handler(s.postContention),
	} {
		api.Handle(pattern, limited(h))
	}
	api.Handle("GET /api/sessions/{id}/events", handler(s.watchSession))
	api.Handle("GET /api/turns/{id}/events", handler(s.watchTurn))

	mux := http.NewServeMux()
	mux.Handle("/api/", s.known(api))
	mux.Handle("GET /{$}", limited(handler(s.welcome)))
	mux.Handle("GET /healthz", limited(handler(s.health)))
	for _, file := range []string{"app.js", "style.css"} {
		mux.HandleFunc("GET /"+file, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-cache")
			http.ServeFileFS(w, r, pageFiles, "page/"+file)
		})
	}
	if s.inspect {
		mux.Handle("/pawl/", s.inspector())
	}
	return guarded(s.log, mux)
}

// ownedBy returns the state of a session, or pawl.ErrNotFound if user is not its owner.
func ownedBy(ctx context.Context, session pawl.Scope[Session], user string) (Session, error) {
	head, err := session.State(ctx)
	if err == nil && (head.Owner == "" || head.Owner != user) {
		err = pawl.ErrNotFound
	}
	return head, err
}

// getMe returns the account of the visitor and the limits of the organisation.
func (s *Server) getMe(w http.ResponseWriter, r *http.Request) error {
	me := visitorOf(r)
	account, err := Accounts.Scope(s.rt, me.user).State(r.Context())
	if err != nil {
		return err
	}
	limits, err := Orgs.Scope(s.rt, me.org).State(r.Context())
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, map[string]any{"user": me.user, "credits": account.Credits, "settings": account.Settings,
		"org": map[string]any{"id": me.org, "per_day": limits.PerDay, "used": limits.Used[time.Now().UTC().Format(time.DateOnly)]}})
}

// putSetting changes one setting. Concurrent changes of two settings both succeed.
func (s *Server) putSetting(w http.ResponseWriter, r *http.Request) error {
	var in struct{ Value string }
	if err := decode(r, &in); err != nil {
		return err
	}
	if name := r.PathValue("name"); name != "instructions" && name != "name" || len(in.Value) > 2000 {
		return &apiError{"BAD_SETTING", http.StatusBadRequest}
	}
	snap, err := Accounts.Scope(s.rt, visitorOf(r).user).SetStateRecord(r.Context(), settings, r.PathValue("name"), in.Value)
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, snap.ReadOnly().Settings)
}

// sessionView is the part of a session that the page gets.
type sessionView struct {
	ID      string     `json:"id"`
	Title   string     `json:"title"`
	Turns   int        `json:"turns"`
	Open    []OpenTurn `json:"open"`
	Version uint64     `json:"version"`
}

func viewSession(snap pawl.Snapshot[Session]) any {
	head := snap.ReadOnly()
	return sessionView{snap.ID, head.Title, head.Turns, append([]OpenTurn{}, head.Open...), snap.Version}
}

func (s *Server) listSessions(w http.ResponseWriter, r *http.Request) error {
	found := []any{}
	for session, err := range Sessions.List(r.Context(), s.rt, pawl.Query{Labels: []string{visitorOf(r).user}}) {
		if err != nil {
			return err
		}
		found = append(found, viewSession(session))
	}
	return respond(w, http.StatusOK, found)
}

// newSession creates a session. Its id begins with the inverted time: lists are ordered by id, so
// the newest session comes first.
func (s *Server) newSession(w http.ResponseWriter, r *http.Request) error {
	id := fmt.Sprintf("%012x%s", 1<<48-time.Now().UnixMilli(), rand.Text())
	return pawl.Transact(r.Context(), s.rt, func(ctx context.Context, tx *pawl.Tx) error {
		head := Session{Owner: visitorOf(r).user}
		if _, err := Sessions.Scope(tx, id).SetState(ctx, head, pawl.IfAbsent()); err != nil {
			return err
		}
		return idempotency.Respond(ctx, tx, http.StatusCreated, nil, sessionView{ID: id, Open: []OpenTurn{}, Version: 1})
	})
}

// renameSession changes the title; with If-Match only if the session has one of the versions in it.
func (s *Server) renameSession(w http.ResponseWriter, r *http.Request) error {
	var in struct{ Title string }
	if err := decode(r, &in); err != nil {
		return err
	}
	if in.Title = strings.TrimSpace(in.Title); in.Title == "" || len(in.Title) > 200 {
		return &apiError{"BAD_TITLE", http.StatusBadRequest}
	}
	session := Sessions.Scope(s.rt, r.PathValue("id"))
	if _, err := ownedBy(r.Context(), session, visitorOf(r).user); err != nil {
		return err
	}
	snap, err := session.Snapshot(r.Context())
	if err != nil {
		return err
	}
	opts, err := ifMatch(r.Header.Values("If-Match"), snap.Version)
	if err != nil {
		return err
	}
	snap, err = session.PatchState(r.Context(), pawl.Patch{title: in.Title}, opts...)
	if moved := (*pawl.ConcurrencyError)(nil); errors.As(err, &moved) {
		return errPrecondition // it moved after the Snapshot
	}
	if err != nil {
		return err
	}
	w.Header().Set("ETag", fmt.Sprintf("%q", fmt.Sprint(snap.Version)))
	return respond(w, http.StatusOK, viewSession(snap))
}

// errPrecondition is returned when no entity tag of If-Match is the current one.
var errPrecondition error = &apiError{"CONCURRENCY_ERROR", http.StatusPreconditionFailed}

// entityTag matches an entity tag. Its groups are the mark of a weak tag, and the text.
var entityTag = regexp.MustCompile(`(W/)?"([^"]*)"`)

// ifMatch returns the conditions of an If-Match header for a scope at this version. As RFC 9110
// says in section 13.1.1, "*" matches any version, and a weak tag matches none.
func ifMatch(header []string, version uint64) ([]pawl.CallOption, error) {
	opts := []pawl.CallOption{pawl.IfExists()}
	text := strings.Trim(strings.Join(header, ","), " \t,")
	if text == "" || text == "*" {
		return opts, nil
	}
	if strings.Trim(entityTag.ReplaceAllString(text, ""), " \t,") != "" {
		return nil, &apiError{"BAD_IF_MATCH", http.StatusBadRequest}
	}
	for _, tag := range entityTag.FindAllStringSubmatch(text, -1) {
		if tag[1] == "" && tag[2] == strconv.FormatUint(version, 10) {
			return append(opts, pawl.IfVersion(version)), nil
		}
	}
	return nil, errPrecondition
}

// page is a part of a thread.
type page struct {
	First    int64     `json:"first"` // the version of the first message
	Next     int64     `json:"next"`  // the version after the last one
	More     bool      `json:"more"`  // there may be more, in the direction of the query
	Messages []Message `json:"messages"`
}

// getMessages returns the messages before a version (?before), from a version on (?from), or the last
// ones of a thread.
func (s *Server) getMessages(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if _, err := ownedBy(r.Context(), Sessions.Scope(s.rt, id), visitorOf(r).user); err != nil {
		return err
	}
	q := stream.Query{Backward: r.FormValue("from") == "", Limit: messagesPerPage}
	for name, version := range map[string]*int64{"before": &q.Before, "from": &q.From} {
		if asked := r.FormValue(name); asked != "" {
			v, err := strconv.ParseUint(asked, 10, 62)
			if err != nil {
				return &apiError{"BAD_VERSION", http.StatusBadRequest}
			}
			*version = int64(v)
		}
	}
	got := page{First: q.From, Next: q.From, Messages: []Message{}}
	for e, err := range s.threads.Read(r.Context(), id, q) {
		if err != nil {
			return err
		}
		if len(got.Messages) == 0 {
			got.First, got.Next = e.Version, e.Version
		}
		got.First, got.Next = min(got.First, e.Version), max(got.Next, e.Version+1)
		got.Messages = append(got.Messages, e.Data.(Message))
	}
	got.More = len(got.Messages) == messagesPerPage
	sortMessages(got.Messages)
	return respond(w, http.StatusOK, got)
}

// watchSession streams the head of a session. The page fetches messages when the head shows new
// turns.
func (s *Server) watchSession(w http.ResponseWriter, r *http.Request) error {
	session := Sessions.Scope(s.rt, r.PathValue("id"))
	if _, err := ownedBy(r.Context(), session, visitorOf(r).user); err != nil {
		return err
	}
	return follow(w, r, s.quit, session, sse.View(viewSession))
}

// ownTurn returns the scope of the turn in the URL, or pawl.ErrNotFound if the visitor is not its
// owner.
func (s *Server) ownTurn(r *http.Request) (pawl.Scope[Turn], error) {
	turn := Turns.Scope(s.rt, r.PathValue("id"))
	t, err := turn.State(r.Context())
	if err == nil && (t.For.User == "" || t.For.User != visitorOf(r).user) {
		err = pawl.ErrNotFound
	}
	return turn, err
}

// turnView is the part of a turn that the page gets.
type turnView struct {
	ID      string `json:"id"`
	Session string `json:"session"`
	N       int    `json:"n"`
	Status  string `json:"status"`
	Text    string `json:"text"`
	Error   string `json:"error"`
	Steps   []Step `json:"steps"`
	Board   Board  `json:"board"`
}

// watchTurn streams an answer while it grows. A reloaded page starts with the current text.
func (s *Server) watchTurn(w http.ResponseWriter, r *http.Request) error {
	turn, err := s.ownTurn(r)
	if err != nil {
		return err
	}
	return follow(w, r, s.quit, turn, sse.Until(Turn.over), sse.View(func(snap pawl.Snapshot[Turn]) any {
		t := snap.ReadOnly()
		return turnView{snap.ID, t.For.Session, t.N, t.Status, t.Text, t.Error, append([]Step{}, t.Steps...), t.Board}
	}))
}

// follow serves a scope until the client disconnects or the server shuts down. It returns nil,
// because sse.Serve has sent its errors to the client.
func follow[T any](w http.ResponseWriter, r *http.Request, quit context.Context, scope pawl.Scope[T], opts ...sse.Option) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(quit, cancel)()
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the server's ReadTimeout would end the stream
	_ = sse.Serve(w, r.WithContext(ctx), scope, append(opts, sse.Retry(time.Second))...)
	return nil
}

// health reads from the store, and returns 503 if it fails.
func (s *Server) health(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	if _, err := Orgs.Scope(s.rt, orgOfGuests).Snapshot(ctx); err != nil {
		return &apiError{"UNHEALTHY", http.StatusServiceUnavailable}
	}
	return respond(w, http.StatusOK, map[string]string{"status": "ok"})
}

// handler is an http.Handler that returns its error, which ServeHTTP turns into a response.
type handler func(http.ResponseWriter, *http.Request) error

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := h(w, r)
	if err == nil {
		return
	}
	if pawl.IsRetryable(err) || pawl.OutcomeUnknown(err) {
		w.Header().Set("Retry-After", "1")
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(pawl.HTTPStatus(err))
	_ = json.NewEncoder(w).Encode(map[string]string{"code": pawl.Code(err)})
}

// respond writes body as JSON.
func respond(w http.ResponseWriter, status int, body any) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	return json.NewEncoder(w).Encode(body)
}

// decode reads the body of a request, which is one JSON value.
func decode(r *http.Request, into any) error {
	dec := json.NewDecoder(r.Body)
	err := dec.Decode(into)
	if err == nil {
		if _, err = dec.Token(); err == io.EOF {
			return nil
		} else if err == nil {
			err = errors.New("trailing data after the JSON value")
		}
	}
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return &apiError{"TOO_LARGE", http.StatusRequestEntityTooLarge}
	}
	return &apiError{"BAD_REQUEST", http.StatusBadRequest}
}
