package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Workflow is a status machine. Load reads the same thing from JSON.
type Workflow struct {
	Name     string   `json:"workflow"`
	Module   string   `json:"module"`      // owns the entities, and the janitor
	Kind     string   `json:"entity_kind"` // of the entities
	Statuses []string `json:"status_types"`
	Initial  string   `json:"initial_status,omitempty"` // of a new entity; empty: they come from elsewhere, in any status
	Steps    []Step   `json:"steps"`
}

// Step moves an entity from Status to a successful state. The maps are by requester: who has an action may fire the step.
type Step struct {
	ID      int                 `json:"step_id"`
	Key     string              `json:"step_key"`
	Status  string              `json:"status"`
	Claim   map[string]Claim    `json:"successful_claim_state,omitempty"` // a requester without one runs unclaimed
	To      map[string]string   `json:"successful_state"`
	Action  map[string]string   `json:"action"`
	Effects map[string][]string `json:"success_after_effect,omitempty"`
}

// Claim is the pair [claim_into, revert_to].
type Claim []string

// Into is the status that an entity has while its action runs.
func (c Claim) Into() string { return c[0] }

// Revert is the status that an entity gets when its action did not succeed.
func (c Claim) Revert() string { return c[1] }

// UnmarshalJSON reads the pair. Whatever else is there is kept as one string, for Validate to complain about with all the rest.
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

// Load reads a workflow from JSON and validates it. It returns, joined, a *SyntaxError with line and column for each field that it does not
// know, each name that occurs twice in an object, and for what is not JSON or not of the right type; or else what Validate returns.
func Load(text []byte) (Workflow, error) {
	var (
		w   Workflow
		raw json.RawMessage
	)
	if err := json.Unmarshal(text, &raw); err != nil {
		return Workflow{}, at(text, err)
	}
	if err := checkNames(text); err != nil {
		return Workflow{}, err
	}
	if err := json.Unmarshal(text, &w); err != nil {
		return Workflow{}, at(text, err)
	}
	if err := w.Validate(); err != nil {
		return Workflow{}, err
	}
	return w, nil
}

// at is err, of encoding/json, with the place that it names.
func at(text []byte, err error) *SyntaxError {
	var (
		syntax *json.SyntaxError
		typ    *json.UnmarshalTypeError
	)
	offset, reason := int64(len(text)), err.Error()
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &typ):
		offset, reason = typ.Offset, fmt.Sprintf("%s cannot be a %s", strings.TrimPrefix(typ.Field, "."), typ.Value)
	}
	return place(text, offset, strings.TrimPrefix(reason, "json: "))
}

// place is a fault that ends at an offset.
func place(text []byte, offset int64, reason string) *SyntaxError {
	before := text[:min(max(offset-1, 0), int64(len(text)))]
	return &SyntaxError{
		Line:   1 + bytes.Count(before, []byte("\n")),
		Column: len(before) - bytes.LastIndexByte(before, '\n'),
		Reason: reason,
	}
}

// names are the fields of the objects of a workflow file. Objects below a step are by requester, and any name will do.
var names = [][]string{
	{"workflow", "module", "entity_kind", "status_types", "initial_status", "steps"},
	{"step_id", "step_key", "status", "successful_claim_state", "successful_state", "action", "success_after_effect"},
}

// checkNames walks through the text, which is JSON, and complains about what encoding/json would let pass: a field that nobody knows, and a name that occurs twice.
func checkNames(text []byte) error {
	type level struct {
		seen map[string]bool // of an object; nil: it is a list
		key  bool            // a name comes next
	}
	var (
		stack []level
		errs  []error
	)
	dec := json.NewDecoder(bytes.NewReader(text))
	for {
		token, err := dec.Token()
		if err != nil { // it is the end: the text is known to be JSON
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
			fault := func(reason string) { errs = append(errs, place(text, dec.InputOffset()-int64(len(name))-1, reason)) }
			if stack[top].seen[name] {
				fault(fmt.Sprintf("%q occurs twice", name))
			} else if objects <= len(names) && !slices.Contains(names[objects-1], name) {
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

// claims returns claim_into to revert_to.
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

// requesters returns everybody that a step mentions, in order.
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
