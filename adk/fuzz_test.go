package adk_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/adk"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/stretchr/testify/require"
	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"
)

// An empty response of a tool stays empty, and a missing one stays missing. A model refuses a response
// that is null.
func TestEmptyToolResponse(t *testing.T) {
	each(t, adk.Config{}, func(t *testing.T, s *adk.Service) {
		h := create(t, s, "s", nil)
		for _, m := range []map[string]any{nil, {}, {"a": nil}, {"a": map[string]any{}, "b": []any{}}} {
			e := event("e", nil)
			e.Content = &genai.Content{Role: "user", Parts: []*genai.Part{
				{Text: "first"},
				{FunctionResponse: &genai.FunctionResponse{ID: "1", Name: "tool", Response: m}},
				{FunctionCall: &genai.FunctionCall{ID: "2", Name: "tool", Args: m}},
				nil,
			}}
			appendTo(t, s, h, e)
			got := getBy(t, s, &session.GetRequest{SessionID: "s", NumRecentEvents: 1}).Events().At(0)
			require.Equal(t, e.Content, got.Content)
		}
	})
}

// Every field of an event that JSON can hold comes back as it was.
func FuzzEvent(f *testing.F) {
	f.Add("id", "text", "key", []byte{0, 1, 255}, int64(1_700_000_000_000_000), 1.5, uint16(0xffff), []byte(`{"a":[1,null,{}],"b":""}`))
	f.Add("", "\u0000\u2028<>&\"\\💬", "", []byte(nil), int64(-1), math.Copysign(0, -1), uint16(0), []byte(`null`))
	f.Add("x", "", "a.b", []byte("PNG"), int64(0), 1e300, uint16(0x5555), []byte(`"x"`))
	rt, err := pawl.Open(pawl.Config{Store: stores.OpenFor(f, stores.Memory.New(f)), Kinds: adk.Kinds(), MaxDoc: smallDocs}) // large events are in pieces
	require.NoError(f, err)
	f.Cleanup(func() { _ = rt.Close(f.Context()) })
	s, err := adk.New(rt, adk.Config{})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, id, text, key string, data []byte, micros int64, number float64, bits uint16, raw []byte) {
		bit := func(n int) bool { return bits&(1<<n) != 0 }
		clean := func(s string) string { return string([]rune(s)) } // JSON has no other strings
		id, text, key = clean(id), clean(text), clean(key)
		var value any
		if json.Unmarshal(raw, &value) != nil {
			value = text
		}
		when := time.UnixMicro(micros).UTC()
		if when.Year() < 0 || when.Year() > 9999 {
			t.Skip("not a time in JSON")
		}
		e := &session.Event{ID: id, Timestamp: when, InvocationID: text, Branch: id, IsolationScope: text, Author: key}
		e.LLMResponse = model.LLMResponse{ModelVersion: id, TurnComplete: bit(0), Interrupted: bit(1), ErrorCode: text, ErrorMessage: id, AvgLogprobs: number}
		if bit(2) {
			e.Content = &genai.Content{Role: id, Parts: []*genai.Part{{Text: text, Thought: bit(3)}}}
			if len(data) > 0 {
				e.Content.Parts = append(e.Content.Parts, &genai.Part{InlineData: &genai.Blob{Data: data, MIMEType: "image/png"}, ThoughtSignature: data})
			}
			m := map[string]any{}
			if bit(4) {
				m[key] = value
			}
			e.Content.Parts = append(e.Content.Parts,
				&genai.Part{FunctionResponse: &genai.FunctionResponse{Name: id, Response: m}},
				&genai.Part{FunctionCall: &genai.FunctionCall{Name: text, Args: m}})
		}
		if bit(5) {
			e.Actions.StateDelta = map[string]any{}
			e.Actions.ArtifactDelta = map[string]int64{key: micros}
			e.CustomMetadata = map[string]any{key: value}
		}
		if bit(6) {
			e.LongRunningToolIDs, e.Routes = []string{id, text}, []string{}
			e.NodeInfo = &session.NodeInfo{Path: text, MessageAsOutput: bit(7)}
			e.RequestedInput = &session.RequestInput{InterruptID: id, Message: text, Payload: value}
		}
		if bit(8) {
			e.Output = value
			e.UsageMetadata = &genai.GenerateContentResponseUsageMetadata{PromptTokenCount: int32(micros)}
			e.CitationMetadata = &genai.CitationMetadata{Citations: []*genai.Citation{{Title: text, URI: id}}}
		}
		e.Actions.Escalate, e.Actions.SkipSummarization, e.Actions.TransferToAgent = bit(9), bit(10), text
		want := *e

		r, err := s.Create(t.Context(), &session.CreateRequest{AppName: appName, UserID: userID})
		require.NoError(t, err)
		appendTo(t, s, r.Session, e)
		got := get(t, s, r.Session.ID())
		require.Equal(t, &want, got.Events().At(0))
		remove(t, s, r.Session.ID())
	})
}
