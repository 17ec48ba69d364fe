package main

import (
	"context"
	"iter"

	"github.com/pawl-go/pawl/adk"
	"google.golang.org/adk/v2/agent"
	"google.golang.org/adk/v2/agent/llmagent"
	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/runner"
	"google.golang.org/adk/v2/session"
	"google.golang.org/adk/v2/tool"
	"google.golang.org/adk/v2/tool/functiontool"
	"google.golang.org/genai"
)

const (
	price        = 3
	answerBought = "bought"
	answerPoor   = "too few credits"
)

type spendArgs struct {
	Price int `json:"price"`
}

type spendResult struct {
	Bought bool `json:"bought"`
}

// spend is the tool. It decides by the credits that it reads. If they change before its event is
// stored, the event is refused with adk.ErrStale. The number of orders only grows, so it is an Inc.
func spend(ctx agent.Context, args spendArgs) (spendResult, error) {
	v, err := ctx.State().Get("user:credits")
	if err != nil {
		return spendResult{}, err
	}
	credits, _ := v.(float64)
	if credits < float64(args.Price) {
		return spendResult{}, nil
	}
	if err := ctx.State().Set("user:credits", credits-float64(args.Price)); err != nil {
		return spendResult{}, err
	}
	return spendResult{Bought: true}, ctx.State().Set("user:orders", adk.Inc(1))
}

// newRunner returns a runner of the agent with its tool. Any session.Service will do.
func newRunner(sessions session.Service) (*runner.Runner, error) {
	spender, err := functiontool.New(functiontool.Config{Name: "spend", Description: "Buys one for a number of credits."}, spend)
	if err != nil {
		return nil, err
	}
	clerk, err := llmagent.New(llmagent.Config{Name: "clerk", Model: fakeModel{}, Tools: []tool.Tool{spender}})
	if err != nil {
		return nil, err
	}
	return runner.New(runner.Config{AppName: appName, Agent: clerk, SessionService: sessions})
}

// fakeModel calls the tool once for each message of the user, and says what came of it.
type fakeModel struct{}

func (fakeModel) Name() string { return "fake" }

func (fakeModel) GenerateContent(_ context.Context, req *model.LLMRequest, _ bool) iter.Seq2[*model.LLMResponse, error] {
	return func(yield func(*model.LLMResponse, error) bool) {
		last := req.Contents[len(req.Contents)-1].Parts[0]
		answer := genai.NewContentFromFunctionCall("spend", map[string]any{"price": price}, "model")
		if r := last.FunctionResponse; r != nil {
			answer = genai.NewContentFromText(answerPoor, "model")
			if r.Response["bought"] == true {
				answer = genai.NewContentFromText(answerBought, "model")
			}
		}
		yield(&model.LLMResponse{Content: answer}, nil)
	}
}
