package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// View is a page about the documents of one kind, such as the runs of package flow/run. Functions of
// this package return the views of the layers. A program can make its own.
type View struct {
	// Name is the name of the view in links.
	Name string
	// Title is the text of the link. Empty: Name.
	Title string
	// Query selects the records, by Kind at least. The page sets After and Limit.
	Query persist.Query
	// Keep selects among the records of Query; nil: all. Each page reads a bounded number of records.
	Keep func(persist.Record) bool
	// Columns are the headings of the columns after the id.
	Columns []string
	// Row returns the texts of the columns. Its error is answered as an error of the store is.
	Row func(ctx context.Context, r Record) ([]string, error)
	// Actions are what can be done with a record, if Config.Actions names them.
	Actions []Action
}

// shows reports whether v can list r. A due time or a state of the query is not tested: those pass.
func (v View) shows(r persist.Record) bool {
	q := v.Query
	return strings.HasPrefix(r.ID, q.Prefix) && r.ID >= q.From && (q.Before == "" || r.ID < q.Before) &&
		(len(q.Labels) == 0 || slices.Contains(q.Labels, r.Label)) && (v.Keep == nil || v.Keep(r))
}

// Record is a record as a view sees it: its fields, label and due time are redacted already.
type Record struct {
	persist.Record // without Doc
	fields         map[string]any
	stored         persist.Record // with all that is redacted
}

// RecordOf returns r as a view sees it, with nothing redacted, for a program that shows a view in a
// form of its own. It returns an error for a document that is not JSON.
func RecordOf(r persist.Record) (Record, error) {
	doc, err := decode(r)
	fields, _ := doc.(map[string]any)
	shown := r
	shown.Doc = nil
	return Record{shown, fields, r}, err
}

// Text returns a field of the document as text, empty if there is none. Names of nested objects
// follow one another. A value that is not a string is returned as JSON.
func (r Record) Text(names ...string) string {
	switch v := r.value(names).(type) {
	case nil:
		return ""
	case string:
		return v
	case time.Time:
		return formatTime(v)
	default:
		text, err := json.Marshal(v)
		if err != nil {
			return fmt.Sprint(v)
		}
		return string(text)
	}
}

// Number returns a field of the document as a number, 0 if it is none.
func (r Record) Number(names ...string) int64 {
	n, _ := r.value(names).(json.Number)
	i, _ := n.Int64()
	return i
}

// List returns the entries of a list in the document that are objects.
func (r Record) List(names ...string) (all []Record) {
	list, _ := r.value(names).([]any)
	for _, v := range list {
		if fields, ok := v.(map[string]any); ok {
			all = append(all, Record{r.Record, fields, r.stored})
		}
	}
	return all
}

// Entries returns the number of entries of an object in the document.
func (r Record) Entries(names ...string) int {
	entries, _ := r.value(names).(map[string]any)
	return len(entries)
}

// Holder returns the holder of the live lease and the time that is left, "" if there is none.
func (r Record) Holder() string {
	if !r.Held(r.Now) {
		return ""
	}
	return r.Lease.Holder + ", " + duration(r.Lease.Until.Sub(r.Now))
}

// Age returns how long ago the record was written.
func (r Record) Age() string { return duration(r.Now.Sub(r.Updated)) }

func (r Record) value(names []string) any {
	var v any = r.fields
	for _, name := range names {
		object, _ := v.(map[string]any)
		v = object[name]
	}
	return v
}

// viewRow is a row of a view.
type viewRow struct {
	ID, Link string
	Cells    []string
	Actions  []button
}

// viewPage is what a view shows.
type viewPage struct {
	View
	Rows    []viewRow
	Next    string // link; empty: this is the last page
	Scanned int
	Acts    bool // some action is allowed
}

// view is the page of a view.
func (h *handler) view(r *http.Request) (page, error) {
	form := r.URL.Query()
	v, ok := h.viewNamed(form.Get("name"))
	if !ok {
		return page{}, &problem{status: http.StatusNotFound, text: "There is no such view."}
	}
	q := v.Query
	q.After, q.Limit = form.Get("after"), pageSize
	records, next, scanned, err := h.scan(r.Context(), q, v.Keep)
	if err != nil {
		return page{}, err
	}
	p := viewPage{View: v, Scanned: scanned}
	for _, a := range v.Actions {
		p.Acts = p.Acts || h.allows(a.Name)
	}
	for _, rec := range records {
		row := viewRow{ID: rec.ID, Link: docLink(rec.Key)}
		if row.Cells, err = h.cells(r.Context(), v, rec); err != nil {
			return page{}, err
		}
		for _, a := range v.Actions {
			if h.allows(a.Name) && a.applies(rec) {
				row.Actions = append(row.Actions, button{a.title(), actLink(v.Name, a.Name, rec.Key)})
			}
		}
		p.Rows = append(p.Rows, row)
	}
	if next != "" {
		p.Next = "view?" + (url.Values{"name": {v.Name}, "after": {next}}).Encode()
	}
	return page{Template: "view.html", Heading: v.heading(), Data: p}, nil
}

// heading returns the title of v, or its name.
func (v View) heading() string {
	if v.Title != "" {
		return v.Title
	}
	return v.Name
}

// cells returns the row of a record, without what is redacted.
func (h *handler) cells(ctx context.Context, v View, rec persist.Record) ([]string, error) {
	content, err := h.content(rec)
	if err != nil {
		return []string{"The document cannot be shown."}, nil
	}
	fields, _ := content.(map[string]any) // none: the whole document is redacted
	k, known := h.kindOf(rec.Kind)
	shown, hidden := rec, h.hidden(rec, k, known)
	shown.Doc, shown.Label = nil, hidden.label()
	if hidden.due() != formatTime(rec.Due) {
		shown.Due = time.Time{}
	}
	cells, err := v.Row(ctx, Record{shown, fields, rec})
	for i, text := range cells {
		cells[i] = short(printable(text))
	}
	return cells, err
}

func (h *handler) viewNamed(name string) (View, bool) {
	for _, v := range h.config.Views {
		if v.Name == name {
			return v, true
		}
	}
	return View{}, false
}

// Action changes a record on request.
type Action struct {
	// Name names the action in Config.Actions and in links.
	Name string
	// Effect says what the action does, for the page that confirms it: a sentence.
	Effect string
	// Applies reports whether the action can be done with a record; nil: always.
	Applies func(persist.Record) bool
	// Pin returns a number of the record, such as its version. If it is not the same when the action is
	// done as when it was shown for confirmation, nothing is done. Nil: the action is about any version.
	Pin func(persist.Record) uint64
	// Do does it, with the record as it is now. Its error is shown if pawl.HTTPStatus of it is below
	// 500, and logged.
	Do func(ctx context.Context, r persist.Record) error
}

func (a Action) pin(r persist.Record) string {
	if a.Pin == nil {
		return ""
	}
	return strconv.FormatUint(a.Pin(r), 10)
}

func (a Action) applies(r persist.Record) bool { return a.Applies == nil || a.Applies(r) }

// title returns the name as the text of a button.
func (a Action) title() string { return strings.ToUpper(a.Name[:1]) + a.Name[1:] }

// actLink returns the link to the page that confirms an action. View is empty for actions of all
// documents.
func actLink(view, action string, key pawl.Key) string {
	values := keyValues(key)
	values.Set("action", action)
	if view != "" {
		values.Set("view", view)
	}
	return "act?" + values.Encode()
}
