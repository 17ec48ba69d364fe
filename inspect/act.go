package inspect

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// The actions that need no view, for Config.Actions. The views have more.
const (
	// ActDelete deletes a document, as pawl.Scope.Delete does, if it is still at the version that was
	// shown. The runtime has to know its kind.
	ActDelete = "delete"
	// ActRelease ends the lease that was shown. Its holder loses it, and commits under it are refused.
	ActRelease = "release"
	// ActAbandon gives up a stuck function of this process, as pawl.Scope.Abandon does.
	ActAbandon = "abandon"
)

// tokenCookie is the name of the cookie with the token against forged requests. A form has the same
// token; another site can neither read nor set the cookie.
const tokenCookie = "pawl-inspect"

// maxForm is the size of the form that an action is sent with.
const maxForm = 16 << 10

// everywhere returns the actions that need no view.
func (h *handler) everywhere() []Action {
	return []Action{
		{Name: ActDelete, Effect: "The document is deleted, and its lease ends. Its versions go on if it is created again. The layer that it belongs to is not asked.",
			Applies: func(r persist.Record) bool {
				_, known := h.kindOf(r.Kind)
				return known && !r.Gone(r.Now)
			}, Pin: func(r persist.Record) uint64 { return r.Version }, Do: h.deleteDocument},
		{Name: ActRelease, Effect: "The lease ends at once. Its holder is not asked: it notices at its next commit or renewal, and its commits are refused.",
			Applies: func(r persist.Record) bool { return r.Held(r.Now) },
			Pin:     func(r persist.Record) uint64 { return r.Lease.Token }, Do: h.release},
		{Name: ActAbandon, Effect: "The queue of the scope goes on. The function is not ended: it runs on, and its late result is discarded.",
			Applies: func(persist.Record) bool { return false }}, // it is offered with the queues of the process
	}
}

// actionsOn returns the allowed actions of all documents that can be done with r.
func (h *handler) actionsOn(r persist.Record) (all []Action) {
	for _, a := range h.everywhere() {
		if h.allows(a.Name) && a.applies(r) {
			all = append(all, a)
		}
	}
	return all
}

func (h *handler) deleteDocument(ctx context.Context, r persist.Record) error {
	return pawl.Kind[pawl.Doc]{Name: r.Kind}.Scope(h.rt, r.ID).Delete(ctx, pawl.IfVersion(r.Version))
}

func (h *handler) release(ctx context.Context, r persist.Record) error {
	_, err := h.rt.Store().Commit(ctx, persist.Commit{ID: "inspect-" + rand.Text() + ".1",
		Guards: []persist.Guard{{Key: r.Key, Token: r.Lease.Token, Release: true}}})
	if errors.As(err, new(*persist.Fenced)) {
		return &problem{status: http.StatusConflict, text: "The lease has ended already, or has another holder.", cause: err}
	}
	return err
}

// actPage is what the page that confirms an action shows.
type actPage struct {
	Action, Effect string
	Key            pawl.Key
	Facts          []fact
	Pin            string // the record that the action is about; see Action.Pin
	Forgery        string // the token against forged requests
	Back           string // link
}

// act confirms an action (GET) or does it (POST).
func (h *handler) act(r *http.Request) (page, error) {
	form := r.URL.Query()
	a, v, ok := h.action(form.Get("view"), form.Get("action"))
	switch {
	case !ok || v.Query.Kind != "" && v.Query.Kind != form.Get("kind"):
		return page{}, &problem{status: http.StatusNotFound, text: "There is no such action."}
	case !h.allows(a.Name):
		return page{}, &problem{status: http.StatusForbidden, text: "This action is not allowed here."}
	case h.config.Author(r) == "":
		return page{}, &problem{status: http.StatusForbidden, text: "The author of the request is not known, so it may not act."}
	}
	if r.Method == http.MethodPost {
		if err := h.checkForgery(r); err != nil {
			return page{}, err
		}
	}
	key, err := keyOf(form)
	if err != nil {
		return page{}, err
	}
	if a.Name == ActAbandon {
		return h.abandon(r, a, key)
	}
	rec, err := h.loadKey(r.Context(), key)
	if err != nil {
		return page{}, err
	}
	if !v.shows(rec) || !a.applies(rec) {
		return page{}, &problem{status: http.StatusConflict, text: "The document has changed: the action does not apply any more."}
	}
	if r.Method == http.MethodPost {
		return h.perform(r, a, rec)
	}
	content, failed := h.content(rec)
	return confirmation(a, actPage{Key: key, Facts: h.describe(rec, content, failed).Facts, Pin: a.pin(rec), Back: docLink(key)}), nil
}

// confirmation returns the page that confirms an action.
func confirmation(a Action, p actPage) page {
	p.Action, p.Effect, p.Forgery = a.title(), a.Effect, rand.Text()
	return page{Template: "act.html", Heading: a.title() + " " + printable(p.Key.ID), Data: p, token: p.Forgery}
}

// abandon confirms that a stuck function is to be given up (GET), or gives it up (POST). The function
// is told from later ones by the time of its start.
func (h *handler) abandon(r *http.Request, a Action, key pawl.Key) (page, error) {
	since := r.URL.Query().Get("since")
	q, f, ok := h.stuck(key, since)
	if !ok {
		return page{}, &problem{status: http.StatusConflict, text: "No such function is stuck any more. Nothing was done."}
	}
	if r.Method != http.MethodPost {
		return confirmation(a, actPage{Key: key, Pin: since, Back: "queues", Facts: []fact{
			{Name: "Function", Value: f.Verb}, {Name: "Running", Value: "since " + formatTime(f.Since) + ", for " + duration(time.Since(f.Since))},
			{Name: "Waiting", Value: strconv.Itoa(q.Waiting) + " mutations"}}}), nil
	}
	if r.PostFormValue("pin") != since || !h.rt.Abandon(key, f.Since) {
		return page{}, &problem{status: http.StatusConflict, text: "The function has ended since the action was confirmed. Nothing was done."}
	}
	h.config.Logger.InfoContext(r.Context(), "inspect: action", "action", a.Name, "scope", key.String(), "since", f.Since, "author", h.config.Author(r))
	return page{Status: http.StatusSeeOther, location: "queues"}, nil
}

// stuck returns the stuck function of a scope that started at a time, as abandonLink names it.
func (h *handler) stuck(key pawl.Key, since string) (pawl.QueueStats, pawl.FunctionStats, bool) {
	for _, q := range h.rt.Stats().Queues {
		for _, f := range q.Running {
			if q.Scope == key && f.Stuck && moment(f.Since) == since {
				return q, f, true
			}
		}
	}
	return pawl.QueueStats{}, pawl.FunctionStats{}, false
}

// abandonLink returns the link to the page that confirms that a function is given up.
func abandonLink(key pawl.Key, f pawl.FunctionStats) string {
	values := keyValues(key)
	values.Set("action", ActAbandon)
	values.Set("since", moment(f.Since))
	return "act?" + values.Encode()
}

// moment returns a time for a link.
func moment(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

// action returns the action of a view with the view, or of all documents if view is empty.
func (h *handler) action(view, name string) (a Action, v View, ok bool) {
	actions := h.everywhere()
	if view != "" {
		v, _ = h.viewNamed(view)
		actions = v.Actions
	}
	for _, a := range actions {
		if a.Name == name {
			return a, v, true
		}
	}
	return Action{}, View{}, false
}

// checkForgery returns a problem unless the request comes from a page of this handler.
func (h *handler) checkForgery(r *http.Request) error {
	cookie, err := r.Cookie(tokenCookie)
	token := r.PostFormValue("forgery")
	if h.cross.Check(r) != nil || err != nil || token == "" || subtle.ConstantTimeCompare([]byte(cookie.Value), []byte(token)) != 1 {
		return &problem{status: http.StatusForbidden, text: "The request does not come from the page that confirms the action, or that page is too old. Open it again."}
	}
	return nil
}

// perform does an action, logs it, and leads back to the document.
func (h *handler) perform(r *http.Request, a Action, rec persist.Record) (page, error) {
	if r.PostFormValue("pin") != a.pin(rec) {
		return page{}, &problem{status: http.StatusConflict, text: "The document has changed since the action was confirmed. Nothing was done."}
	}
	err := a.Do(r.Context(), rec)
	attrs := []any{"action", a.Name, "view", r.URL.Query().Get("view"), "scope", rec.Key.String(), "version", rec.Version, "author", h.config.Author(r)}
	if err != nil {
		h.config.Logger.WarnContext(r.Context(), "inspect: action failed", append(attrs, "err", err)...)
		if known := new(*problem); errors.As(err, known) {
			return page{}, err
		}
		status := pawl.HTTPStatus(err)
		if pawl.OutcomeUnknown(err) {
			return page{}, &problem{status: status, text: "The store did not answer: the action may have been done, or not. Look at the document.", cause: err}
		}
		if status < 500 {
			return page{}, &problem{status: status, text: "Nothing was done: " + printable(err.Error()), cause: err}
		}
		return page{}, &problem{status: http.StatusServiceUnavailable, text: "The action failed: " + pawl.Code(err) + ". Look at the document.", cause: err}
	}
	h.config.Logger.InfoContext(r.Context(), "inspect: action", attrs...)
	return page{Status: http.StatusSeeOther, location: docLink(rec.Key)}, nil
}
