package machine

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Workflow is a status machine. Load reads a Workflow from JSON.
type Workflow struct {
	Name string `json:"workflow"`
	// Module owns the entities and the janitor of their claim states.
	Module string `json:"module"`
	// Kind is the kind of the entities.
	Kind     string   `json:"entity_kind"`
	Statuses []string `json:"status_types"`
	// Initial is the status of a new entity; empty: new entities come with the status of any step.
	Initial string `json:"initial_status,omitempty"`
	Steps   []Step `json:"steps"`
}

// Step moves an entity from Status to a successful state. Its maps have requesters as keys. A
// requester with an action may fire the step.
type Step struct {
	ID     int    `json:"step_id"`
	Key    string `json:"step_key"`
	Status string `json:"status"`
	// Claim is the claim of each requester; a requester without one runs unclaimed.
	Claim   map[string]Claim    `json:"successful_claim_state,omitempty"`
	To      map[string]string   `json:"successful_state"`
	Action  map[string]string   `json:"action"`
	Effects map[string][]string `json:"success_after_effect,omitempty"`
}

// Claim is the pair [claim_into, revert_to].
type Claim []string

// Into returns the status of an entity while its action runs.
func (c Claim) Into() string { return c[0] }

// Revert returns the status of an entity after an action that did not succeed.
func (c Claim) Revert() string { return c[1] }

// UnmarshalJSON reads the pair. Any other JSON value is kept as one string, so that Validate
// reports it together with all other violations.
func (c *Claim) UnmarshalJSON(b []byte) error {
	var parts []any
	if json.Unmarshal(b, &parts) == nil {
		pair := make(Claim, 0, len(parts))
		for _, p := range parts {
			if s, ok := p.(string); ok {
				pair = append(pair, s)
			}
		}
		if len(pair) == len(parts) {
			*c = pair
			return nil
		}
	}
	*c = Claim{string(b)}
	return nil
}

// Load reads a workflow from JSON and validates it. It returns a *SyntaxError, with line and
// column, for text that is not JSON or not of the right type. It returns one, joined, for each
// unknown field and each name that occurs twice in an object. Otherwise it returns what Validate
// returns.
func Load(text []byte) (Workflow, error) {
	var (
		w   Workflow
		raw json.RawMessage
	)
	if err := json.Unmarshal(text, &raw); err != nil {
		return Workflow{}, syntaxError(text, err)
	}
	if err := checkNames(text); err != nil {
		return Workflow{}, err
	}
	if err := json.Unmarshal(text, &w); err != nil {
		return Workflow{}, syntaxError(text, err)
	}
	if err := w.Validate(); err != nil {
		return Workflow{}, err
	}
	return w, nil
}

// syntaxError converts an error of encoding/json, and adds line and column.
func syntaxError(text []byte, err error) *SyntaxError {
	var (
		syntax *json.SyntaxError
		typ    *json.UnmarshalTypeError
	)
	offset, reason := int64(len(text)), err.Error()
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &typ):
		field := cmp.Or(strings.TrimPrefix(typ.Field, "."), "the workflow")
		offset, reason = typ.Offset, fmt.Sprintf("%s must be %s, got %s", field, jsonType(typ.Type), withArticle(typ.Value))
	}
	return syntaxErrorAt(text, offset, strings.TrimPrefix(reason, "json: "))
}

// jsonType returns the JSON type that a field of this Go type is read from, with its article.
func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Int:
		return "an integer"
	case reflect.Slice:
		return "an array"
	}
	return "an object"
}

// withArticle returns the name of a JSON type, as encoding/json gives it, with its article.
func withArticle(name string) string {
	if strings.HasPrefix(name, "array") || strings.HasPrefix(name, "object") {
		return "an " + name
	}
	return "a " + name
}

// syntaxErrorAt returns an error for a fault that ends at offset.
func syntaxErrorAt(text []byte, offset int64, reason string) *SyntaxError {
	before := text[:min(max(offset-1, 0), int64(len(text)))]
	return &SyntaxError{
		Line:   1 + bytes.Count(before, []byte("\n")),
		Column: len(before) - bytes.LastIndexByte(before, '\n'),
		Reason: reason,
	}
}

// fieldNames are the fields of the objects of a workflow file, by depth. Objects inside a step have
// requesters as keys, so any name is allowed there.
var fieldNames = [][]string{
	{"workflow", "module", "entity_kind", "status_types", "initial_status", "steps"},
	{"step_id", "step_key", "status", "successful_claim_state", "successful_state", "action", "success_after_effect"},
}

// checkNames reports what encoding/json accepts and a workflow must not contain: unknown fields,
// and names that occur twice in an object. The text must be valid JSON.
func checkNames(text []byte) error {
	type level struct {
		seen map[string]bool // the names of an object; nil: a list
		key  bool            // the next token is a name
	}
	var (
		stack []level
		errs  []error
	)
	dec := json.NewDecoder(bytes.NewReader(text))
	for {
		token, err := dec.Token()
		if err != nil { // the end of the text, which is valid JSON
			return errors.Join(errs...)
		}
		top := len(stack) - 1
		if name, ok := token.(string); ok && top >= 0 && stack[top].key {
			objects := 0
			for _, l := range stack {
				if l.seen != nil {
					objects++
				}
			}
			fault := func(reason string) {
				errs = append(errs, syntaxErrorAt(text, dec.InputOffset()-int64(len(name))-1, reason))
			}
			if stack[top].seen[name] {
				fault(fmt.Sprintf("%q occurs twice", name))
			} else if objects <= len(fieldNames) && !slices.Contains(fieldNames[objects-1], name) {
				fault(fmt.Sprintf("unknown field %q", name))
			}
			stack[top].seen[name], stack[top].key = true, false
			continue
		}
		switch token {
		case json.Delim('{'):
			stack = append(stack, level{seen: map[string]bool{}, key: true})
			continue
		case json.Delim('['):
			stack = append(stack, level{})
			continue
		case json.Delim('}'), json.Delim(']'):
			stack, top = stack[:top], top-1
		}
		if top >= 0 {
			stack[top].key = stack[top].seen != nil
		}
	}
}

// claims maps each claim_into to its revert_to.
func (w *Workflow) claims() map[string]string {
	all := map[string]string{}
	for _, s := range w.Steps {
		for _, c := range s.Claim {
			if len(c) == 2 {
				all[c.Into()] = c.Revert()
			}
		}
	}
	return all
}

// requesters returns all requesters that a step mentions, sorted.
func (s *Step) requesters() []string {
	all := map[string]bool{}
	for by := range s.Claim {
		all[by] = true
	}
	for by := range s.To {
		all[by] = true
	}
	for by := range s.Action {
		all[by] = true
	}
	for by := range s.Effects {
		all[by] = true
	}
	return slices.Sorted(maps.Keys(all))
}
