package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/sse"
)

// fact is a line of the table beside a document.
type fact struct {
	Name  string        `json:"name"`
	Value string        `json:"value"`
	Left  time.Duration `json:"left,omitempty"` // counts down after Value; 0: nothing does
}

// docPage is what the page of a document shows, and what its live view sends.
type docPage struct {
	Key     pawl.Key `json:"-"`
	Version uint64   `json:"version"`
	State   string   `json:"state"` // live, deleted, expired or absent
	Facts   []fact   `json:"facts"`
	Doc     string   `json:"doc"`
	Cut     int      `json:"cut"` // bytes that Doc leaves out
	Notice  string   `json:"notice"`
	Changes []change `json:"changes,omitempty"`

	List    string   `json:"-"` // link
	Raw     string   `json:"-"` // link
	Live    string   `json:"-"` // link
	Again   string   `json:"-"` // link to the live view that begins with the record as it is
	Actions []button `json:"-"`
}

// button is a link to another page, such as the one that confirms an action.
type button struct{ Text, Link string }

// keyOf returns the key that a request names, or why no record can have it.
func keyOf(form url.Values) (pawl.Key, error) {
	key := pawl.Key{Kind: form.Get("kind"), ID: form.Get("id")}
	for _, part := range []struct {
		name, value string
		limit       int
	}{{"kind", key.Kind, pawl.MaxKind}, {"id", key.ID, pawl.MaxID}} {
		if part.value == "" || len(part.value) > part.limit || strings.ToValidUTF8(part.value, "") != part.value || strings.Contains(part.value, "\x00") {
			return key, &problem{status: http.StatusBadRequest, text: "No document can have this " + part.name + "."}
		}
	}
	return key, nil
}

// watchable reports whether the runtime can watch a key. It refuses control characters, which no
// scope has; another program may have written such a record.
func watchable(k pawl.Key) bool {
	return !strings.ContainsFunc(k.Kind+k.ID, unicode.IsControl)
}

// load returns the record that a request names. It returns a problem for an absent record.
func (h *handler) load(r *http.Request) (persist.Record, error) {
	key, err := keyOf(r.URL.Query())
	if err != nil {
		return persist.Record{}, err
	}
	return h.loadKey(r.Context(), key)
}

func (h *handler) loadKey(ctx context.Context, key pawl.Key) (persist.Record, error) {
	store, err := h.store()
	if err != nil {
		return persist.Record{}, err
	}
	rec, err := store.Load(ctx, key)
	if errors.Is(err, persist.ErrNotFound) {
		return rec, &problem{status: http.StatusNotFound, text: "There is no document " + printable(key.String()) + "."}
	}
	return rec, err
}

// document is the page of one document.
func (h *handler) document(r *http.Request) (page, error) {
	rec, err := h.load(r)
	if err != nil {
		return page{}, err
	}
	content, err := h.content(rec)
	p := h.describe(rec, content, err)
	values := keyValues(rec.Key)
	p.Key, p.Raw, p.List = rec.Key, "raw?"+values.Encode(), "kind?"+(url.Values{"kind": {rec.Kind}}).Encode()
	for _, a := range h.actionsOn(rec) {
		p.Actions = append(p.Actions, button{a.title(), actLink("", a.Name, rec.Key)})
	}
	if watchable(rec.Key) {
		p.Again = "live?" + values.Encode()
		values.Set("lastEventId", strconv.FormatUint(rec.Version, 10))
		p.Live = "live?" + values.Encode()
	}
	return page{Template: "doc.html", Heading: printable(rec.ID), Data: p}, nil
}

// describe returns what is shown of a record. Failed is the error of its content.
func (h *handler) describe(r persist.Record, content any, failed error) docPage {
	k, known := h.kindOf(r.Kind)
	p := docPage{Version: r.Version, State: "live"}
	add := func(name, value string) {
		if value != "" {
			p.Facts = append(p.Facts, fact{Name: name, Value: printable(value)})
		}
	}
	count := func(name, value string, left time.Duration) {
		p.Facts = append(p.Facts, fact{name, printable(value), left})
	}
	switch {
	case r.Absent():
		p.State = "absent"
		return p
	case r.Deleted && !r.Expires.IsZero():
		p.State = "expired and swept"
	case r.Deleted:
		p.State = "deleted"
	case r.Expired(r.Now):
		p.State = "expired"
	}
	switch {
	case failed != nil:
		p.Notice = "The document cannot be shown: " + printable(failed.Error())
	case known && r.Schema > k.Schema:
		p.Notice = "A newer release wrote this document: its schema is " + strconv.Itoa(r.Schema) + ", and this release knows " + strconv.Itoa(k.Schema) + "."
	}
	add("Version", strconv.FormatUint(r.Version, 10)+" (created as "+strconv.FormatUint(r.Born, 10)+")")
	add("Schema", strconv.Itoa(r.Schema))
	add("Written", formatTime(r.Updated)+", "+duration(r.Now.Sub(r.Updated))+" ago")
	hidden := h.hidden(r, k, known)
	add("Label", hidden.label())
	add("Due", hidden.due())
	switch {
	case r.Expires.IsZero():
	case r.Expires.After(r.Now) && !r.Deleted:
		count("Expires", formatTime(r.Expires)+", in ", r.Expires.Sub(r.Now))
	default:
		add("Expired", formatTime(r.Expires)+", "+duration(r.Now.Sub(r.Expires))+" ago")
	}
	switch {
	case r.Held(r.Now):
		count("Lease", r.Lease.Holder+", token "+strconv.FormatUint(r.Lease.Token, 10)+", for another ", r.Lease.Until.Sub(r.Now))
	case r.Lease.Token != 0:
		add("Lease", "none; that of "+r.Lease.Holder+" ran out "+duration(r.Now.Sub(r.Lease.Until))+" ago")
	default:
		add("Lease", "none")
	}
	add("Size", strconv.Itoa(len(r.Doc))+" bytes")
	add("Commits", strings.Join(r.Commits, ", "))
	if failed == nil && len(r.Doc) > 0 {
		if p.Doc = pretty(content); len(p.Doc) > maxShown {
			p.Cut = len(p.Doc) - maxShown
			p.Doc = strings.ToValidUTF8(p.Doc[:maxShown], "")
		}
	}
	return p
}

// raw answers with the whole document as a file.
func (h *handler) raw(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), h.config.Timeout)
	defer cancel()
	rec, err := h.load(r.WithContext(ctx))
	var content any
	if err == nil {
		if content, err = h.content(rec); err != nil {
			err = &problem{status: http.StatusUnprocessableEntity, text: "The document cannot be shown.", cause: err}
		}
	}
	if err != nil {
		h.render(w, r, h.failed(r, err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Disposition", `attachment; filename="document.json"`)
	_ = json.NewEncoder(w).Encode(content)
}

// liveInterval is the time between two versions in a live view: a person cannot read faster, and each
// is read from the store.
const liveInterval = 100 * time.Millisecond

// live sends a document whenever it changes, with the fields that differ from what was sent before.
func (h *handler) live(w http.ResponseWriter, r *http.Request) {
	key, err := keyOf(r.URL.Query())
	if err == nil && !watchable(key) {
		err = &problem{status: http.StatusBadRequest, text: "This document cannot be watched."}
	}
	if err != nil {
		h.render(w, r, h.failed(r, err))
		return
	}
	err = sse.ServeEvents(w, r, func(ctx context.Context, after string) iter.Seq2[sse.Event, error] {
		return func(yield func(sse.Event, error) bool) {
			var before any
			first := true
			for rec, err := range h.rt.WatchRecord(ctx, key) {
				if err != nil {
					yield(sse.Event{}, err)
					return
				}
				content, failed := h.content(rec)
				p := h.describe(rec, content, failed)
				id := strconv.FormatUint(rec.Version, 10)
				if !first {
					p.Changes = difference(before, content)
				}
				seen := first && id == after
				before, first = content, false
				if !seen && !yield(sse.Event{ID: id, Data: p}, nil) {
					return
				}
				select { // versions that come meanwhile are one change
				case <-time.After(liveInterval):
				case <-ctx.Done():
				}
			}
		}
	})
	if err != nil && !errors.Is(err, sse.ErrMethod) {
		h.config.Logger.ErrorContext(r.Context(), "inspect: live view ended", "scope", key.String(), "err", err)
	}
}
