package server

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
)

// The limits of a request and its answer.
const (
	// openAIHeaders bounds the wait for the headers of one request. Some providers send nothing
	// before the first word.
	openAIHeaders = 2 * time.Minute
	// openAIOpening bounds the time until an answer can be read, including repeated requests.
	openAIOpening = 4 * time.Minute
	// openAIIdle bounds the time between two lines.
	openAIIdle = 2 * time.Minute
	// openAIRest bounds the read after the last line, which lets the connection be reused.
	openAIRest = 100 * time.Millisecond
	// openAIBody is the maximum size of an answer in bytes.
	openAIBody = 8 << 20
	// openAILine is the maximum length of a line in bytes.
	openAILine = 1 << 20
	// openAICalls is the maximum number of calls in an answer.
	openAICalls = 64
)

// openAIRetry is the budget of repeated requests before the answer begins. A longer Retry-After of
// the provider ends the repeats with an error.
var openAIRetry = pawl.Retry{Attempts: 4, First: 250 * time.Millisecond, Max: 5 * time.Second, Within: 30 * time.Second}

var errSilent = errors.New("the model's server stopped sending")

// openAI is a model behind an endpoint that is compatible with OpenAI's chat completions.
type openAI struct {
	url, key, model string
	client          *http.Client
	opening, idle   time.Duration
}

// newOpenAI returns the named model of the service at base, such as http://localhost:11434/v1; an
// empty base is OpenAI's. The key may be empty. It returns an error for an invalid base or key.
func newOpenAI(base, key, model string) (*openAI, error) {
	u, err := url.Parse(cmp.Or(base, "https://api.openai.com/v1"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		// The error does not contain the URL, which may contain a password.
		return nil, errors.New("the base URL of the model must begin with http:// or https:// and name a host")
	}
	key = strings.TrimSpace(key)
	if strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return nil, errors.New("the model's key has a character that is not printable ASCII")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = openAIHeaders
	return &openAI{
		url: u.JoinPath("chat/completions").String(), key: key, model: model,
		opening: openAIOpening, idle: openAIIdle,
		client: &http.Client{
			Transport: &idempotency.Transport{Base: transport, Retry: openAIRetry},
			// A redirect would send the key and the prompt to another host.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// CloseIdleConnections closes the connections to the service that no answer uses.
func (m *openAI) CloseIdleConnections() { m.client.CloseIdleConnections() }

// Answer implements Model. It repeats the request, under the prompt's key, until the answer begins.
// A refusal that a retry cannot change is marked by pawl.NonRetryable. A stream that breaks, stops
// or cannot be decoded is not. When ctx ends, the error is its cause.
func (m *openAI) Answer(ctx context.Context, p Prompt) iter.Seq2[Delta, error] {
	return func(yield func(Delta, error) bool) {
		reading, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		silence := time.AfterFunc(m.opening, func() { cancel(errSilent) })
		defer silence.Stop()
		left := false // the consumer has ended the loop
		calls, err := m.read(reading, p, silence, func(text string) bool {
			silence.Stop() // the time of the consumer does not count
			left = ctx.Err() == nil && !yield(Delta{Text: text}, nil)
			return !left && ctx.Err() == nil
		})
		switch {
		case left:
			return
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case err != nil && reading.Err() != nil:
			err = context.Cause(reading)
		}
		for i := 0; err == nil && i < len(calls); i++ {
			if !yield(Delta{Call: &calls[i]}, nil) {
				return
			}
		}
		if err != nil {
			yield(Delta{}, err)
		}
	}
}

// read sends the prompt, passes each piece of text to text, and returns the calls. It ends early
// when text returns false.
func (m *openAI) read(ctx context.Context, p Prompt, silence *time.Timer, text func(string) bool) ([]Call, error) {
	response, err := m.post(ctx, p)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	silence.Reset(m.idle)
	body := http.MaxBytesReader(nil, response.Body, openAIBody)
	if response.StatusCode != http.StatusOK {
		return nil, m.refusal(response.StatusCode, body)
	}
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, openAILine)
	var parts openAIParts
	finished := false
	for silence.Reset(m.idle); lines.Scan(); silence.Reset(m.idle) {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:")) // each event has one line of data
		if !ok {
			continue // an empty line, a keep-alive comment, or another field
		}
		if data = bytes.TrimSpace(data); string(data) == "[DONE]" {
			for silence.Reset(openAIRest); lines.Scan(); {
			}
			return parts.calls()
		}
		var chunk openAIChunk
		if err := json.Unmarshal(data, &chunk); err != nil {
			return nil, errors.New("the model's server sent an event that is no chunk of an answer")
		}
		if len(chunk.Error) > 0 && string(chunk.Error) != "null" {
			return nil, fmt.Errorf("the model's server failed during the answer: %s", m.errorText(data))
		}
		for _, choice := range chunk.Choices {
			if said := choice.Delta.Content + choice.Delta.Refusal; said != "" && !text(said) {
				return nil, nil
			}
			if err := parts.add(choice.Delta.ToolCalls); err != nil {
				return nil, err
			}
			if choice.FinishReason == "content_filter" {
				return nil, pawl.NonRetryable(errors.New("the model's server withheld the answer"))
			}
			finished = finished || choice.FinishReason != ""
		}
	}
	if !finished { // otherwise the answer is complete, even if the connection broke
		return nil, fmt.Errorf("the answer of the model's server is incomplete: %w", cmp.Or(lines.Err(), io.ErrUnexpectedEOF))
	}
	return parts.calls()
}

// post sends the prompt.
func (m *openAI) post(ctx context.Context, p Prompt) (*http.Response, error) {
	var messages, tools []wire
	if p.System != "" {
		messages = append(messages, wire{"role": "system", "content": p.System})
	}
	for _, message := range p.Messages {
		messages = appendSteps(messages, message.Steps)
		messages = append(messages, wire{"role": message.Role, "content": cmp.Or(message.Text, "(no text: "+cmp.Or(message.Status, "empty")+")")})
	}
	in := wire{"model": m.model, "stream": true, "messages": appendSteps(messages, p.Steps)}
	for _, tool := range p.Tools {
		tools = append(tools, wire{"type": "function", "function": wire{"name": tool.Name, "description": tool.Description, "parameters": tool.Parameters}})
	}
	if tools != nil {
		in["tools"] = tools // providers refuse an empty list
	}
	body, err := json.Marshal(in)
	if err != nil {
		return nil, pawl.NonRetryable(err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url, bytes.NewReader(body))
	if err != nil {
		return nil, pawl.NonRetryable(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "text/event-stream")
	if p.Key != "" {
		r.Header.Set(idempotency.Header, p.Key)
	}
	if m.key != "" {
		r.Header.Set("Authorization", "Bearer "+m.key)
	}
	response, err := m.client.Do(r)
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // without the URL, whose query may contain secrets
	}
	if err != nil {
		return nil, fmt.Errorf("the model's server cannot be reached: %w", err)
	}
	return response, nil
}

// refusal returns the error for a status other than 200.
func (m *openAI) refusal(status int, body io.Reader) error {
	text, _ := io.ReadAll(io.LimitReader(body, 1<<16))
	err := fmt.Errorf("the model's server answered %d %s: %s", status, http.StatusText(status), m.errorText(text))
	if status >= 500 || slices.Contains([]int{408, 409, 425, 429}, status) {
		return err
	}
	return pawl.NonRetryable(err)
}

// errorText returns the error message in body, cut to 200 characters. It hides words that contain a
// part of the key, because some providers repeat the key.
func (m *openAI) errorText(body []byte) string {
	var outer struct{ Error json.RawMessage }
	var inner struct{ Message string }
	_ = json.Unmarshal(body, &outer)
	if json.Unmarshal(outer.Error, &inner.Message) != nil {
		_ = json.Unmarshal(outer.Error, &inner)
	}
	words := strings.FieldsFunc(inner.Message, func(c rune) bool { return unicode.IsSpace(c) || !unicode.IsPrint(c) })
	for i, word := range words {
		hide := strings.Contains(word, "**")
		for n := min(8, len(m.key)); n > 0 && !hide && n <= len(m.key); n++ {
			hide = strings.Contains(word, m.key[max(0, n-8):n])
		}
		if hide {
			words[i] = "[hidden]"
		}
	}
	text := []rune(strings.Join(words, " "))
	if len(text) > 200 {
		text = append(text[:199], '…')
	}
	return cmp.Or(string(text), "no reason given")
}

// wire is a JSON object of a request.
type wire map[string]any

// appendSteps appends the calls of steps and their results. Providers require a result for each
// call.
func appendSteps(messages []wire, steps []Step) []wire {
	for _, step := range steps {
		var calls, results []wire
		for _, call := range step.Calls {
			if !call.Done {
				call.Result = "(not done)"
			}
			calls = append(calls, wire{"id": call.ID, "type": "function", "function": wire{"name": call.Name, "arguments": call.Args}})
			results = append(results, wire{"role": "tool", "tool_call_id": call.ID, "content": call.Result})
		}
		if calls != nil {
			messages = append(append(messages, wire{"role": "assistant", "content": step.Text, "tool_calls": calls}), results...)
		}
	}
	return messages
}

// openAIChunk is a piece of an answer.
type openAIChunk struct {
	Error   json.RawMessage
	Choices []struct {
		FinishReason string `json:"finish_reason"`
		Delta        struct {
			Content, Refusal string
			ToolCalls        []openAIPart `json:"tool_calls"`
		}
	}
}

// openAIPart is a piece of a call, or, in openAIParts, all pieces of a call received so far.
type openAIPart struct {
	Index    int
	ID       string
	Function struct{ Name, Arguments string }
	args     []byte
}

type openAIParts []openAIPart

// add appends each piece to the call with the same index. A piece with a different id starts a new
// call, because some providers send no index.
func (ps *openAIParts) add(pieces []openAIPart) error {
	for _, piece := range pieces {
		i := len(*ps) - 1
		for ; i >= 0; i-- {
			if p := (*ps)[i]; p.Index == piece.Index && (piece.ID == "" || p.ID == "" || p.ID == piece.ID) {
				break
			}
		}
		if i < 0 {
			if len(*ps) == openAICalls {
				return fmt.Errorf("the model requested more than %d calls at once", openAICalls)
			}
			i = len(*ps)
			*ps = append(*ps, openAIPart{Index: piece.Index})
		}
		p := &(*ps)[i]
		p.ID, p.Function.Name = cmp.Or(p.ID, piece.ID), cmp.Or(p.Function.Name, piece.Function.Name)
		p.args = append(p.args, piece.Function.Arguments...)
	}
	return nil
}

// calls returns the calls, or an error if one of them is not valid.
func (ps openAIParts) calls() ([]Call, error) {
	var calls []Call
	for _, part := range ps {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(part.args, &object); err != nil || object == nil || part.Function.Name == "" {
			return nil, errors.New("the model requested a call without a name, or with arguments that are no JSON object")
		}
		calls = append(calls, Call{Name: part.Function.Name, Args: string(part.args)})
	}
	return calls, nil
}
