package inspect

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// Config configures the handler of New; its zero value shows everything and changes nothing.
type Config struct {
	// Title is the heading of every page. Empty: "Pawl".
	Title string
	// Kinds are names of kinds to list besides those that the runtime knows, such as kinds of other
	// programs on the same store.
	Kinds []string
	// Views are the pages about the layers; see [Runs] and the other functions that return one.
	Views []View
	// Redact hides parts of documents. It is called for each value of a document, from the outside in:
	// the path of the whole document is empty, that of an entry of a list ends with its index. If it
	// reports true, shown appears in the place of value, and nothing inside is looked at. It is called
	// for labels and due times too, with the field that they come from, or "label" and "due" if the
	// runtime does not know the kind. Values are nil, bool, string, json.Number, []any or map[string]any.
	// A document of an older schema has the fields that it was stored with, before any Upgrade: hide
	// those too. With Redact, one of a newer schema than the runtime knows is not shown.
	// Ids are not redacted. Nil: nothing is hidden. It must be safe for concurrent use.
	Redact func(key pawl.Key, path pawl.Field, value any) (shown any, redacted bool)
	// Workers are the background workers that the page of the process shows, such as a *pawl.Sweeper
	// and a *machine.Engine, which has janitors. None: none is shown.
	Workers []Workers
	// Actions are the names of the actions that are allowed: [ActDelete], [ActRelease], [ActAbandon],
	// and those of Views. None: the pages are read-only.
	Actions []string
	// Author returns the name of the author of a request, for the log. It is required with Actions. A
	// request whose author is empty may not act.
	Author func(*http.Request) string
	// Logger gets the actions, and the errors of the store. Nil: slog.Default().
	Logger *slog.Logger
	// Timeout bounds the reads of one page. 0: DefaultTimeout.
	Timeout time.Duration
}

// Workers has background workers in this process.
type Workers interface {
	// Workers returns their state. It is quick, and safe for concurrent use.
	Workers() []pawl.WorkerStats
}

// DefaultTimeout is the time for the reads of one page.
const DefaultTimeout = 10 * time.Second

// The sizes of pages.
const (
	pageSize   = 50        // rows of a list
	scanSize   = 200       // records of one query that is filtered here
	maxScans   = 5         // such queries for one page
	countLimit = 100       // documents of a kind that are counted
	maxShown   = 256 << 10 // bytes of a document on its page
)

//go:embed assets
var assets embed.FS

var pages = template.Must(template.New("").Funcs(template.FuncMap{"show": printable, "ago": duration}).ParseFS(assets, "assets/*.html"))

// handler is the http.Handler of New.
type handler struct {
	rt     *pawl.Runtime
	config Config
	routes map[string]func(*http.Request) (page, error) // by the last segment of the path
	views  []button                                     // links to the views
	cross  *http.CrossOriginProtection
}

// New returns a handler that shows rt. It panics, as http.ServeMux does on a bad pattern, on a nil
// runtime or worker, on a view without name, kind or rows, on two views or actions with one name, on
// Actions that no view has, and on Actions without Author.
func New(rt *pawl.Runtime, c Config) http.Handler {
	if rt == nil {
		panic("inspect: nil runtime")
	}
	c.Title, c.Timeout = cmp.Or(c.Title, "Pawl"), cmp.Or(c.Timeout, DefaultTimeout)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if slices.Contains(c.Workers, nil) {
		panic("inspect: Config.Workers contains nil")
	}
	h := &handler{rt: rt, config: c, cross: http.NewCrossOriginProtection()}
	h.checkViews()
	h.routes = map[string]func(*http.Request) (page, error){
		"": h.kinds, "kind": h.list, "doc": h.document, "queues": h.queues, "view": h.view, "act": h.act,
	}
	return h
}

// checkViews panics on a fault of the views or actions.
func (h *handler) checkViews() {
	known, names := map[string]bool{}, map[string]bool{}
	for _, a := range h.everywhere() {
		known[a.Name] = true
	}
	for _, v := range h.config.Views {
		if v.Name == "" || v.Query.Kind == "" || v.Row == nil || names[v.Name] {
			panic(fmt.Sprintf("inspect: view %q: Name, Query.Kind and Row are required, and names are used once", v.Name))
		}
		names[v.Name] = true
		h.views = append(h.views, button{v.heading(), "view?" + (url.Values{"name": {v.Name}}).Encode()})
		own := map[string]bool{ActDelete: true, ActRelease: true, ActAbandon: true}
		for _, a := range v.Actions {
			if a.Name == "" || a.Do == nil || own[a.Name] {
				panic(fmt.Sprintf("inspect: view %q: action %q: Name and Do are required, and names are used once", v.Name, a.Name))
			}
			own[a.Name], known[a.Name] = true, true
		}
	}
	for _, name := range h.config.Actions {
		if !known[name] {
			panic(fmt.Sprintf("inspect: Config.Actions: unknown action %q", name))
		}
	}
	if len(h.config.Actions) > 0 && h.config.Author == nil {
		panic("inspect: Config.Actions without Config.Author")
	}
}

// allows reports whether the configuration allows an action.
func (h *handler) allows(action string) bool { return slices.Contains(h.config.Actions, action) }

// page is one page: its template and what that shows.
type page struct {
	Template string // in assets
	Heading  string
	Data     any
	Status   int    // 0: 200
	token    string // against forged requests; empty: no cookie is set
	location string // of a redirect; empty: none
}

// site is what every template gets.
type site struct {
	page
	Title string
	Views []button
	Store bool // there is a store
}

// problem is an error with a page for people.
type problem struct {
	status int
	text   string
	cause  error // logged, not shown; nil: none
}

func (p *problem) Error() string { return fmt.Sprintf("inspect: %s: %v", p.text, p.cause) }

func (p *problem) Unwrap() error { return p.cause }

// ServeHTTP shows the page that the last segment of the path names.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	for name, value := range map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
		"X-Content-Type-Options":  "nosniff",
		"X-Frame-Options":         "DENY",
		"Referrer-Policy":         "no-referrer",
		"Cache-Control":           "no-store",

		"Cross-Origin-Resource-Policy": "same-origin",
	} {
		header.Set(name, value)
	}
	name := ""
	if !strings.HasSuffix(r.URL.Path, "/") {
		name = path.Base(r.URL.Path)
	}
	switch name {
	case "style.css", "app.js":
		header.Set("Cache-Control", "no-cache") // a new release is seen at once
		http.ServeFileFS(w, r, assets, "assets/"+name)
		return
	case "live":
		h.live(w, r)
		return
	case "raw":
		h.raw(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.config.Timeout)
	defer cancel()
	show, ok := h.routes[name]
	var p page
	var err error
	switch {
	case !ok:
		err = &problem{status: http.StatusNotFound, text: "There is no such page."}
	case !slices.Contains(strings.Split(allowed(name), ", "), r.Method):
		header.Set("Allow", allowed(name))
		err = &problem{status: http.StatusMethodNotAllowed, text: "This page can only be read."}
	default:
		if r.Method == http.MethodPost {
			readForm(w, r, h.config.Timeout)
		}
		p, err = show(r.WithContext(ctx))
	}
	if err != nil {
		p = h.failed(r, err)
	}
	h.render(w, r, p)
}

// readForm reads the form of a POST. A client that is too slow, or sends too much, has sent no form.
func readForm(w http.ResponseWriter, r *http.Request, within time.Duration) {
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(within)) // a ResponseWriter without deadlines reads with those of its server
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if r.ParseForm() == nil {
		_ = conn.SetReadDeadline(time.Time{})
	} else {
		r.PostForm = url.Values{}
	}
}

// render writes a page.
func (h *handler) render(w http.ResponseWriter, r *http.Request, p page) {
	var body bytes.Buffer
	if p.location == "" {
		s := site{page: p, Title: h.config.Title, Views: h.views, Store: h.rt.Store() != nil}
		if err := pages.ExecuteTemplate(&body, p.Template, s); err != nil {
			h.config.Logger.ErrorContext(r.Context(), "inspect: page not rendered", "page", p.Template, "err", err)
			http.Error(w, "The page could not be made.", http.StatusInternalServerError)
			return
		}
	}
	if p.token != "" {
		http.SetCookie(w, &http.Cookie{Name: tokenCookie, Value: p.token, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil})
	}
	if p.location != "" {
		w.Header().Set("Location", p.location) // relative, which http.Redirect would change
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(cmp.Or(p.Status, http.StatusOK))
	_, _ = body.WriteTo(w)
}

// failed returns the page of an error, and logs errors that are not the reader's.
func (h *handler) failed(r *http.Request, err error) page {
	p := h.problemOf(r, err)
	if p.status >= 500 {
		h.config.Logger.ErrorContext(r.Context(), "inspect: "+p.text, "path", r.URL.Path, "err", p.cause)
	}
	return page{Template: "problem.html", Heading: http.StatusText(p.status), Status: p.status, Data: p.text}
}

// problemOf returns what a reader is told about an error.
func (h *handler) problemOf(r *http.Request, err error) *problem {
	var known *problem
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, pawl.ErrNoStore):
		return &problem{status: http.StatusNotFound, text: "This runtime has no store, so it has no documents.", cause: err}
	case errors.Is(err, pawl.ErrNotFound):
		return &problem{status: http.StatusNotFound, text: "It does not exist any more.", cause: err}
	case errors.Is(err, pawl.ErrClosed) || errors.Is(err, persist.ErrClosed):
		return &problem{status: http.StatusServiceUnavailable, text: "The program is shutting down: its runtime is closed.", cause: err}
	case errors.As(err, new(*pawl.LimitError)) || errors.As(err, new(*pawl.ArgumentError)) || errors.As(err, new(*pawl.KindError)):
		return &problem{status: http.StatusBadRequest, text: "The request is not valid: " + err.Error(), cause: err}
	}
	return &problem{status: http.StatusServiceUnavailable, text: "The store does not answer. Nothing was changed by looking; try again in a moment.", cause: err}
}

// store returns the store, or pawl.ErrNoStore.
func (h *handler) store() (persist.Store, error) {
	if s := h.rt.Store(); s != nil {
		return s, nil
	}
	return nil, pawl.ErrNoStore
}

// allowed returns the methods of the page with a name, as the header Allow has them.
func allowed(name string) string {
	if name == "act" {
		return "GET, HEAD, POST"
	}
	return "GET, HEAD"
}
