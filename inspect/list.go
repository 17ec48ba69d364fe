package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// kindRow is a kind on the first page.
type kindRow struct {
	pawl.KindInfo
	Known bool // by the runtime
	Count int  // of documents, at most countLimit
	More  bool // there are more
	Link  string
}

// kinds is the first page: the kinds and how many documents they have.
func (h *handler) kinds(r *http.Request) (page, error) {
	var rows []kindRow
	for _, k := range h.rt.Kinds() {
		rows = append(rows, kindRow{KindInfo: k, Known: true})
	}
	for _, name := range h.config.Kinds {
		if !slices.ContainsFunc(rows, func(k kindRow) bool { return k.Name == name }) {
			rows = append(rows, kindRow{KindInfo: pawl.KindInfo{Name: name}})
		}
	}
	slices.SortFunc(rows, func(a, b kindRow) int { return strings.Compare(a.Name, b.Name) })
	for i := range rows {
		k := &rows[i]
		if k.Link = "kind?" + (url.Values{"kind": {k.Name}}).Encode(); k.InMemory || h.rt.Store() == nil {
			continue
		}
		found, err := h.rt.Store().List(r.Context(), persist.Query{Kind: k.Name, Limit: countLimit})
		if err != nil {
			return page{}, err
		}
		k.Count, k.More = len(found.Records), found.Next != ""
	}
	return page{Template: "kinds.html", Heading: "Kinds", Data: rows}, nil
}

// row is one record in a list.
type row struct {
	ID      string
	Version uint64
	Label   string
	Due     string
	Age     time.Duration // since the last write
	Holder  string        // of a live lease; empty: none
	Left    time.Duration // of the lease
	Expires string
	Deleted bool
	Link    string
}

// listPage is what the page of a kind shows.
type listPage struct {
	Kind    string
	Known   bool
	Form    url.Values
	States  []string
	State   string
	Rows    []row
	Next    string // link; empty: this is the last page
	Scanned int    // records that were read for a filter of this package; 0: none
}

// states are the values of the filter by state. Each is a query of the store, except held.
var states = []string{"live", "held", "due", "expired", "deleted"}

// list is the page of one kind.
func (h *handler) list(r *http.Request) (page, error) {
	form := r.URL.Query()
	q, state, err := queryOf(form)
	if err != nil {
		return page{}, err
	}
	var keep func(persist.Record) bool
	if state == "held" {
		keep = func(r persist.Record) bool { return r.Held(r.Now) }
	}
	records, next, scanned, err := h.scan(r.Context(), q, keep)
	if err != nil {
		return page{}, err
	}
	p := listPage{Kind: q.Kind, Form: form, States: states, State: state, Scanned: scanned}
	kind, known := h.kindOf(q.Kind)
	p.Known = known
	for _, rec := range records {
		row := h.rowOf(rec, kind, known)
		if len(q.Labels) > 0 && row.Label != rec.Label {
			continue // a list by labels would tell which one is hidden
		}
		p.Rows = append(p.Rows, row)
	}
	if len(p.Rows) == 0 && len(records) > 0 {
		next = ""
	}
	if next != "" {
		form.Set("after", next)
		p.Next = "kind?" + form.Encode()
	}
	return page{Template: "list.html", Heading: "Kind " + printable(q.Kind), Data: p}, nil
}

// queryOf returns the query of a form.
func queryOf(form url.Values) (q persist.Query, state string, err error) {
	for name, values := range form {
		if len(values) > 1 || !utf8.ValidString(values[0]) || strings.Contains(values[0], "\x00") || len(values[0]) > 4096 {
			return q, "", &problem{status: http.StatusBadRequest, text: "The field " + printable(name) + " is not one text in UTF-8."}
		}
	}
	q = persist.Query{Kind: form.Get("kind"), Prefix: form.Get("prefix"), From: form.Get("from"), Before: form.Get("before"),
		Reverse: form.Get("reverse") != "", After: form.Get("after"), Limit: pageSize}
	if q.Kind == "" {
		return q, "", &problem{status: http.StatusBadRequest, text: "The name of a kind is missing."}
	}
	if label := form.Get("label"); label != "" {
		q.Labels = []string{label}
	}
	switch state = form.Get("state"); state {
	case "", "live":
		state = "live"
	case "held":
	case "due":
		q.Due = true
	case "expired":
		q.Expired = true
	case "deleted":
		q.Deleted = true
	default:
		return q, "", &problem{status: http.StatusBadRequest, text: "There is no state " + printable(state) + "."}
	}
	return q, state, nil
}

// scan returns a page of the records that match q and keep, and the cursor of the next page. With
// keep it reads at most maxScans pages of the store, so the page may be short.
func (h *handler) scan(ctx context.Context, q persist.Query, keep func(persist.Record) bool) (out []persist.Record, next string, scanned int, err error) {
	store, err := h.store()
	if err != nil {
		return nil, "", 0, err
	}
	if keep == nil {
		found, err := store.List(ctx, q)
		return found.Records, found.Next, 0, cursorError(q, err)
	}
	q.Limit = scanSize
	for range maxScans {
		found, err := store.List(ctx, q)
		if err != nil {
			return nil, "", 0, cursorError(q, err)
		}
		scanned += len(found.Records)
		for _, r := range found.Records {
			if keep(r) {
				out = append(out, r)
			}
		}
		if q.After = found.Next; q.After == "" || len(out) >= pageSize {
			break
		}
	}
	return out, q.After, scanned, nil
}

// cursorError tells a cursor that the store does not know from a store that does not answer.
func cursorError(q persist.Query, err error) error {
	if err == nil || q.After == "" || errors.Is(err, persist.ErrUnavailable) || errors.Is(err, persist.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	return &problem{status: http.StatusBadRequest, text: "The list cannot go on there. Start again with its first page.", cause: err}
}

// kindOf returns what the runtime knows about a kind.
func (h *handler) kindOf(name string) (pawl.KindInfo, bool) {
	for _, k := range h.rt.Kinds() {
		if k.Name == name {
			return k, true
		}
	}
	return pawl.KindInfo{Name: name}, false
}

// rowOf returns a record as a row, without what is redacted.
func (h *handler) rowOf(r persist.Record, k pawl.KindInfo, known bool) row {
	hidden := h.hidden(r, k, known)
	out := row{
		ID: r.ID, Version: r.Version, Age: r.Now.Sub(r.Updated), Deleted: r.Deleted, Link: docLink(r.Key),
		Label: hidden.label(), Due: hidden.due(), Expires: formatTime(r.Expires),
	}
	if r.Held(r.Now) {
		out.Holder, out.Left = r.Lease.Holder, r.Lease.Until.Sub(r.Now)
	}
	return out
}

// docLink returns the link to the page of a document.
func docLink(k pawl.Key) string { return "doc?" + keyValues(k).Encode() }

func keyValues(k pawl.Key) url.Values { return url.Values{"kind": {k.Kind}, "id": {k.ID}} }

// formatTime returns t for people, and nothing for the zero time.
func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// duration returns d for people: its largest two units.
func duration(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 0:
		return "-" + duration(-d)
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return d.Truncate(time.Second).String()
	case d >= time.Second:
		return d.Truncate(100 * time.Millisecond).String()
	}
	return d.Truncate(time.Millisecond).String()
}
