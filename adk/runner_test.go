package adk_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/adk"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/stretchr/testify/require"
	"google.golang.org/adk/v2/agent"
	"google.golang.org/adk/v2/agent/llmagent"
	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/runner"
	"google.golang.org/adk/v2/session"
	"google.golang.org/adk/v2/tool"
	"google.golang.org/adk/v2/tool/functiontool"
	"google.golang.org/genai"
)

// fakeModel answers a message with calls of the tool "spend", and their responses with "done".
type fakeModel struct {
	calls  int // of the tool in one turn
	prompt func(contents []*genai.Content)
}

func (m *fakeModel) Name() string { return "fake" }

func (m *fakeModel) GenerateContent(_ context.Context, req *model.LLMRequest, _ bool) iter.Seq2[*model.LLMResponse, error] {
	return func(yield func(*model.LLMResponse, error) bool) {
		if m.prompt != nil {
			m.prompt(req.Contents)
		}
		last := req.Contents[len(req.Contents)-1]
		if last.Parts[len(last.Parts)-1].FunctionResponse != nil {
			yield(&model.LLMResponse{Content: genai.NewContentFromText("done", "model")}, nil)
			return
		}
		content := &genai.Content{Role: "model"}
		for range m.calls {
			content.Parts = append(content.Parts, genai.NewPartFromFunctionCall("spend", map[string]any{}))
		}
		yield(&model.LLMResponse{Content: content}, nil)
	}
}

// newRunner returns a runner of an agent with a tool that changes the state.
func newRunner(t testing.TB, s session.Service, m *fakeModel, spend func(state session.State) error) *runner.Runner {
	t.Helper()
	spender, err := functiontool.New(functiontool.Config{Name: "spend", Description: "spends credits"},
		func(ctx agent.Context, _ struct{}) (map[string]any, error) {
			return map[string]any{}, spend(ctx.State())
		})
	require.NoError(t, err)
	a, err := llmagent.New(llmagent.Config{Name: "clerk", Model: m, Tools: []tool.Tool{spender}})
	require.NoError(t, err)
	r, err := runner.New(runner.Config{AppName: appName, Agent: a, SessionService: s})
	require.NoError(t, err)
	return r
}

// turn runs one turn and returns its events.
func turn(ctx context.Context, r *runner.Runner, id string) (events []*session.Event, err error) {
	for e, err := range r.Run(ctx, userID, id, genai.NewContentFromText("buy", "user"), agent.RunConfig{}) {
		if err != nil {
			return events, err
		}
		events = append(events, e)
	}
	return events, nil
}

// A real runner: its prompts have the whole history, tool calls included, and an empty response of a
// tool stays a response. Parallel tool calls of one turn add up.
func TestRunner(t *testing.T) {
	each(t, adk.Config{}, func(t *testing.T, s *adk.Service) {
		create(t, s, "s", map[string]any{"user:credits": 10})
		var prompts [][]*genai.Content
		m := &fakeModel{calls: 3, prompt: func(c []*genai.Content) { prompts = append(prompts, c) }}
		r := newRunner(t, s, m, func(state session.State) error { return state.Set("user:credits", adk.Inc(-1)) })
		for i := range 3 {
			events, err := turn(t.Context(), r, "s")
			require.NoError(t, err)
			require.Len(t, events, 3) // the calls, their responses, the answer
			require.Equal(t, map[string]any{"user:credits": 10.0 - 3*float64(i+1)}, events[1].Actions.StateDelta)
		}
		h := get(t, s, "s")
		require.Equal(t, 1.0, state(h)["user:credits"])
		require.Equal(t, 12, h.Events().Len())
		require.Len(t, prompts, 6)
		require.Len(t, prompts[5], 11)
		for _, p := range prompts[5][2].Parts {
			require.NotNil(t, p.FunctionResponse.Response)
		}
	})
}

// Turns of many runners at the same time, each in a session of its own, all of one user. A tool that
// reads and writes is refused when another was faster, and its turn is run again. A tool that adds is
// never refused.
func TestRunnersLoseNothing(t *testing.T) {
	tools := map[string]func(state session.State) error{
		"Inc": func(state session.State) error { return state.Set("user:n", adk.Inc(1)) },
		"read and write": func(state session.State) error {
			v, err := state.Get("user:n")
			if err != nil && !errors.Is(err, session.ErrStateKeyNotExist) {
				return err
			}
			n, _ := v.(float64)
			return state.Set("user:n", n+1)
		},
	}
	for name, spend := range tools {
		t.Run(name, func(t *testing.T) {
			stores.Each(t, func(t *testing.T, location string) {
				services := []*adk.Service{open(t, location, adk.Config{}), open(t, location, adk.Config{})}
				const sessions = 4
				turns := testkit.Times(10, 2)
				var refused atomic.Int64
				var all sync.WaitGroup
				for i := range sessions {
					id := fmt.Sprint(i)
					create(t, services[0], id, nil)
					r := newRunner(t, services[i%2], &fakeModel{calls: 1}, spend)
					all.Go(func() {
						for range turns {
							err := again(func() error {
								_, err := turn(t.Context(), r, id)
								if errors.Is(err, adk.ErrStale) {
									refused.Add(1)
								}
								return err
							})
							if err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
				require.Equal(t, float64(sessions*turns), state(get(t, services[0], "0"))["user:n"])
				if name == "Inc" {
					require.Zero(t, refused.Load())
				}
			})
		})
	}
}

// Runners that share one session: with ByKey and Inc every turn is stored.
func TestRunnersShareASession(t *testing.T) {
	each(t, adk.Config{Policy: adk.ByKey}, func(t *testing.T, s *adk.Service) {
		create(t, s, "s", nil)
		const runners = 8
		var all sync.WaitGroup
		for range runners {
			r := newRunner(t, s, &fakeModel{calls: 1}, func(state session.State) error { return state.Set("n", adk.Inc(1)) })
			all.Go(func() {
				_, err := turn(t.Context(), r, "s")
				if err != nil {
					t.Error(err, pawl.Code(err))
				}
			})
		}
		all.Wait()
		h := get(t, s, "s")
		require.Equal(t, float64(runners), state(h)["n"])
		require.Equal(t, 4*runners, h.Events().Len())
	})
}
