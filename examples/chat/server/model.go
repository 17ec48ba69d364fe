package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
)

// Message is a question or an answer of a thread.
type Message struct {
	N      int       `json:"n"`    // the number of its turn
	Role   string    `json:"role"` // "user" or "assistant"
	Text   string    `json:"text"`
	Turn   string    `json:"turn"`
	Status string    `json:"status,omitempty"` // of an answer: done, stopped or failed
	Steps  []Step    `json:"steps,omitempty"`  // of an answer
	At     time.Time `json:"at"`
}

// Step is one answer of a model that calls tools: the text before the calls, and the calls, which
// run in parallel.
type Step struct {
	Text  string `json:"text,omitempty"`
	Calls []Call `json:"calls"`
}

// Call is one call of a tool.
type Call struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Args   string `json:"args"` // a JSON object
	Result string `json:"result"`
	Done   bool   `json:"done"`
}

// Prompt is the input of a model.
type Prompt struct {
	// Key identifies the question and the step. It stays the same when the step is repeated.
	Key      string
	System   string    // the user's instructions for all answers
	Messages []Message // oldest first; the last one is the question
	Steps    []Step    // the finished steps of this turn
	Tools    []Tool
}

// Tool is a function that a model may call.
type Tool struct {
	Name, Description string
	Parameters        json.RawMessage // a JSON schema
}

// Delta is the next piece of an answer: some text, or a complete call with Name and Args.
type Delta struct {
	Text string
	Call *Call
}

// Model answers a prompt, piece by piece. An error ends the sequence. After an answer with calls,
// the model is asked again, with their results as the last of Steps. An error marked by
// pawl.NonRetryable is final; after any other error the step may be repeated under the same key.
type Model interface {
	Answer(ctx context.Context, p Prompt) iter.Seq2[Delta, error]
}

// local is a model without a network. It gives the same answer to the same prompt, word by word. It
// understands a few orders, separated by "; ":
//
//	charge 5
//	email bob@example.com hello
//	transfer 3 to guest-abcd
//	search pawl ratchet lease
//
// "count to 50" streams numbers, and "fail" returns a final error. It answers anything else with a
// few sentences, or with one if the instructions contain "brief".
type local struct {
	delay time.Duration // between two words
}

// Answer implements Model. Its errors are that of "fail", marked by pawl.NonRetryable, and the
// cause of the end of ctx.
func (l local) Answer(ctx context.Context, p Prompt) iter.Seq2[Delta, error] {
	return func(yield func(Delta, error) bool) {
		text, calls, err := p.reply()
		if err != nil {
			yield(Delta{}, err)
			return
		}
		for i, word := range strings.SplitAfter(text, " ") {
			if i > 0 && l.delay > 0 {
				timer := time.NewTimer(l.delay)
				select {
				case <-timer.C:
				case <-ctx.Done():
					timer.Stop()
				}
			}
			if ctx.Err() != nil {
				yield(Delta{}, context.Cause(ctx))
				return
			}
			if !yield(Delta{Text: word}, nil) {
				return
			}
		}
		for _, call := range calls {
			if !yield(Delta{Call: &call}, nil) {
				return
			}
		}
	}
}

// reply returns the text and the calls of the local model.
func (p Prompt) reply() (string, []Call, error) {
	if len(p.Steps) > 0 {
		return p.outcome(), nil, nil
	}
	question := ""
	if n := len(p.Messages); n > 0 {
		question = strings.TrimSpace(p.Messages[n-1].Text)
	}
	var n int
	switch _, err := fmt.Sscanf(strings.ToLower(question), "count to %d", &n); {
	case strings.EqualFold(question, "fail"):
		return "", nil, pawl.NonRetryable(errors.New("the model was asked to fail"))
	case err == nil && n > 0 && n <= 10_000:
		numbers := make([]string, n)
		for i := range numbers {
			numbers[i] = strconv.Itoa(i + 1)
		}
		return strings.Join(numbers, " "), nil, nil
	}
	var calls []Call
	for order := range strings.SplitSeq(question, ";") {
		call, ok := parseOrder(strings.Fields(order))
		if !ok || !slices.ContainsFunc(p.Tools, func(t Tool) bool { return t.Name == call.Name }) {
			return p.smallTalk(question), nil, nil
		}
		calls = append(calls, call)
	}
	return "One moment, I need a tool for that.", calls, nil
}

// parseOrder returns the call of a tool that the words of an order describe.
func parseOrder(words []string) (Call, bool) {
	if len(words) < 2 {
		return Call{}, false
	}
	var name string
	var args map[string]any
	amount, err := strconv.Atoi(words[1])
	switch verb := strings.ToLower(words[0]); {
	case verb == "charge" && len(words) == 2 && err == nil:
		name, args = "charge_card", map[string]any{"amount": amount}
	case verb == "email" && len(words) > 2:
		name, args = "send_email", map[string]any{"to": words[1], "text": strings.Join(words[2:], " ")}
	case verb == "transfer" && len(words) == 4 && words[2] == "to" && err == nil:
		name, args = "transfer", map[string]any{"credits": amount, "to": words[3]}
	case verb == "search":
		name, args = "search", map[string]any{"queries": words[1:]}
	default:
		return Call{}, false
	}
	text, err := json.Marshal(args)
	return Call{Name: name, Args: string(text)}, err == nil
}

// outcome returns the text about the results of the calls.
func (p Prompt) outcome() string {
	var b strings.Builder
	b.WriteString("Results:")
	for _, step := range p.Steps {
		for _, call := range step.Calls {
			fmt.Fprintf(&b, "\n- %s: %s", call.Name, call.Result)
		}
	}
	return b.String()
}

// smallTalk returns the answer to a question that is not an order.
func (p Prompt) smallTalk(question string) string {
	said := []rune(question)
	if len(said) > 80 {
		said = append(said[:79], '…')
	}
	first := fmt.Sprintf("You said %q, which has %d words.", string(said), len(strings.Fields(question)))
	if strings.Contains(strings.ToLower(p.System), "brief") {
		return first
	}
	return fmt.Sprintf("%s It is message %d of this thread that I see. I am a small model without a network, "+
		"so I cannot say much about it. "+
		"Try \"count to 50\", \"search pawl ratchet lease\" or \"charge 5; email bob@example.com hello\".", first, len(p.Messages))
}
