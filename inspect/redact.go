package inspect

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// content returns the document of r without what is redacted: nil, bool, string, json.Number, []any
// or map[string]any. It returns nil for a record without a document. It returns an error for one that
// is not JSON, or of a newer schema than the runtime knows: what has to be redacted in it is not known,
// so no part is shown.
func (h *handler) content(r persist.Record) (any, error) {
	if k, known := h.kindOf(r.Kind); known && r.Schema > k.Schema && h.config.Redact != nil {
		return nil, fmt.Errorf("a newer release wrote it: its schema is %d, and this release knows %d", r.Schema, k.Schema)
	}
	doc, err := decode(r)
	if err != nil || len(r.Doc) == 0 {
		return nil, err
	}
	return h.redact(r.Key, "", doc), nil
}

// decode returns the document of r, nil if there is none. Numbers keep their digits.
func decode(r persist.Record) (doc any, err error) {
	if len(r.Doc) == 0 {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(r.Doc))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("document is not JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("trailing data after the JSON document")
	}
	return doc, nil
}

// redact returns value without what is redacted. It changes value.
func (h *handler) redact(key pawl.Key, path pawl.Field, value any) any {
	if h.config.Redact == nil {
		return value
	}
	if shown, redacted := h.config.Redact(key, path, value); redacted {
		return shown
	}
	switch v := value.(type) {
	case map[string]any:
		for name, entry := range v {
			v[name] = h.redact(key, path.At(name), entry)
		}
	case []any:
		for i, entry := range v {
			v[i] = h.redact(key, path.At(strconv.Itoa(i)), entry)
		}
	}
	return value
}

// copies are the label and the due time of a record. They are copies of fields of its document, and
// are hidden as those are.
type copies struct {
	h    *handler
	r    persist.Record
	kind pawl.KindInfo
	some bool // some part of the document is hidden
	// Whether the label and the due time come from the fields that the runtime takes them from: the
	// field holds this label, and the document has the schema of the runtime.
	ownLabel, ownDue bool
}

// hidden returns the copies of r. If the fields that they were taken from are not known, they are
// hidden if any part of the document is.
func (h *handler) hidden(r persist.Record, k pawl.KindInfo, known bool) copies {
	c := copies{h: h, r: r, kind: k, ownDue: known && k.Due != "" && r.Schema == k.Schema}
	if h.config.Redact == nil || r.Label == "" && r.Due.IsZero() {
		return c
	}
	noting := *h // with a hook that notes whether it hides anything, and where the label is
	noting.config.Redact = func(key pawl.Key, path pawl.Field, value any) (any, bool) {
		shown, redacted := h.config.Redact(key, path, value)
		c.some = c.some || redacted
		c.ownLabel = c.ownLabel || known && k.Label != "" && path == k.Label && value == any(r.Label)
		return shown, redacted
	}
	if _, err := noting.content(r); err != nil || len(r.Doc) == 0 {
		c.some = true
	}
	return c
}

// label returns the label, or what is shown in its place.
func (c copies) label() string {
	return c.show(cmp.Or(c.kind.Label, "label"), c.r.Label, c.r.Label, c.ownLabel)
}

// due returns the due time for people, or what is shown in its place.
func (c copies) due() string {
	return c.show(cmp.Or(c.kind.Due, "due"), c.r.Due.Format(time.RFC3339Nano), formatTime(c.r.Due), c.ownDue)
}

// show returns text, or what is shown in its place if the field with value is hidden. Own says that
// the value was taken from that field.
func (c copies) show(field pawl.Field, value, text string, own bool) string {
	if text == "" || c.h.config.Redact == nil {
		return text
	}
	if shown, redacted := c.h.config.Redact(c.r.Key, field, value); redacted {
		return fmt.Sprint(shown)
	}
	if c.some && !own {
		return "hidden"
	}
	return text
}

// pretty returns a value as indented JSON, with escapes for characters that are not printable.
func pretty(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return "not shown: " + err.Error() // a value of Redact that has no JSON form
	}
	return escape(strings.TrimSuffix(b.String(), "\n"), func(r rune) string {
		if r > 0xffff {
			high, low := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
			return fmt.Sprintf(`\u%04x\u%04x`, high, low)
		}
		return fmt.Sprintf(`\u%04x`, r)
	})
}

// printable returns text with escapes for characters that are not printable, such as those that turn
// the direction of writing around.
func printable(text string) string {
	return escape(strings.ToValidUTF8(text, "\ufffd"), func(r rune) string { return fmt.Sprintf(`\u{%x}`, r) })
}

// escape replaces the characters of text that are neither printable nor a line break.
func escape(text string, with func(rune) string) string {
	hidden := func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if hidden(r) {
			b.WriteString(with(r))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// The limits of a difference.
const (
	maxChanges = 100 // fields
	maxChange  = 400 // characters of a value
)

// change is a field that differs between two versions of a document.
type change struct {
	Path   string `json:"path"`
	Before string `json:"before"` // as JSON; empty: the field is new
	After  string `json:"after"`  // as JSON; empty: the field is gone
}

// difference returns the fields that differ, at most maxChanges and one that says so.
func difference(before, after any) []change {
	var all []change
	compare("", before, after, true, true, &all)
	if len(all) > maxChanges {
		all = append(all[:maxChanges], change{Path: fmt.Sprintf("and %d more", len(all)-maxChanges)})
	}
	return all
}

// compare adds the differences below path. There may be no value before or after.
func compare(path pawl.Field, before, after any, was, is bool, all *[]change) {
	old, oldIs := before.(map[string]any)
	now, nowIs := after.(map[string]any)
	if was && is && oldIs && nowIs {
		for _, name := range slices.Sorted(maps.Keys(union(old, now))) {
			b, was := old[name]
			a, is := now[name]
			compare(path.At(name), b, a, was, is, all)
		}
		return
	}
	oldList, oldIs := before.([]any)
	nowList, nowIs := after.([]any)
	if was && is && oldIs && nowIs {
		for i := range max(len(oldList), len(nowList)) {
			var b, a any
			if i < len(oldList) {
				b = oldList[i]
			}
			if i < len(nowList) {
				a = nowList[i]
			}
			compare(path.At(strconv.Itoa(i)), b, a, i < len(oldList), i < len(nowList), all)
		}
		return
	}
	if was == is && reflect.DeepEqual(before, after) {
		return
	}
	c := change{Path: printable(string(path))}
	if was {
		c.Before = short(pretty(before))
	}
	if is {
		c.After = short(pretty(after))
	}
	*all = append(*all, c)
}

// union returns a map with the names of both.
func union(a, b map[string]any) map[string]any {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// short cuts a text after maxChange characters.
func short(text string) string {
	if len(text) <= maxChange {
		return text
	}
	return strings.ToValidUTF8(text[:maxChange], "") + "…"
}
