package federation

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// ToolSaid begins the answer of a model that has used a tool. The models of the doubles do what a prompt says: a line "Run this: COMMAND"
// makes a model use the shell of the agent, and then answer with what the shell said. To any other prompt a model answers [Said].
const ToolSaid = "The tool said: "

var order = regexp.MustCompile(`(?m)^Run this: (.+)$`)

// conversation is what a model has been told until now.
type conversation struct {
	prompt string   // all that the user wrote
	calls  []string // ids of the tool calls that the model has made
	result *string  // the last result of a tool
	tools  []string
}

// next returns what the model says now, or the command that it wants to run.
func (c conversation) next(shell string) (says, command string) {
	if c.result != nil {
		return ToolSaid + *c.result, ""
	}
	if found := order.FindStringSubmatch(c.prompt); found != nil && slices.Contains(c.tools, shell) {
		return "", found[1]
	}
	return Said, ""
}

// content is a text, or a list of blocks.
type content []block

type block struct {
	Type   string  `json:"type"`
	Text   string  `json:"text"`
	ID     string  `json:"id"`
	Use    string  `json:"tool_use_id"`
	Result content `json:"content"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *content) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte(`"`)) {
		*c = content{{Type: "text"}}
		return json.Unmarshal(text, &(*c)[0].Text)
	}
	return json.Unmarshal(text, (*[]block)(c))
}

func (c content) text() string {
	var all strings.Builder
	for _, b := range c {
		all.WriteString(b.Text + "\n")
	}
	return all.String()
}

// events is a stream of server-sent events. Each has its type in its data too.
func events(all ...map[string]any) *answer {
	var stream bytes.Buffer
	for _, data := range all {
		text, err := json.Marshal(data)
		if err != nil {
			panic(err) // only types of this package
		}
		fmt.Fprintf(&stream, "event: %s\ndata: %s\n\n", data["type"], text)
	}
	return &answer{status: 200, header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}, "Cache-Control": {"no-cache"}}, body: stream.Bytes()}
}

// message answers POST /v1/messages, streaming or not, and /v1/messages/count_tokens.
func message(r *http.Request) *answer {
	var ask struct {
		Model    string `json:"model"`
		Tokens   int    `json:"max_tokens"`
		Stream   bool   `json:"stream"`
		Messages []struct {
			Role    string  `json:"role"`
			Content content `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
	}
	text, ok := body(r, "application/json")
	counts := strings.HasSuffix(r.URL.Path, "/count_tokens")
	switch {
	case !ok || json.Unmarshal(text, &ask) != nil:
		return anthropicError(400, "invalid_request_error", "the body is not JSON")
	case ask.Model != Model:
		return anthropicError(404, "not_found_error", "model: "+ask.Model)
	case len(ask.Messages) == 0 || ask.Messages[0].Role != "user":
		return anthropicError(400, "invalid_request_error", "messages: first message must use the \"user\" role")
	case ask.Tokens < 1 && !counts:
		return anthropicError(400, "invalid_request_error", "max_tokens: Field required")
	case counts:
		return jsonAnswer(200, map[string]int{"input_tokens": 3})
	}
	var c conversation
	for _, tool := range ask.Tools {
		c.tools = append(c.tools, tool.Name)
	}
	for _, m := range ask.Messages {
		for _, b := range m.Content {
			switch {
			case b.Type == "tool_use" && m.Role == "assistant":
				c.calls = append(c.calls, b.ID)
			case b.Type == "tool_result" && !slices.Contains(c.calls, b.Use):
				return anthropicError(400, "invalid_request_error", "messages: unexpected `tool_use_id` found in `tool_result` blocks: "+b.Use)
			case b.Type == "tool_result":
				result := b.Result.text()
				c.result = &result
			case b.Type == "text" && m.Role == "user":
				c.prompt += b.Text + "\n"
			}
		}
	}
	says, command := c.next("Bash")
	begun, part, delta, reason := map[string]any{"type": "text", "text": ""}, map[string]any{"type": "text", "text": says}, map[string]any{"type": "text_delta", "text": says}, "end_turn"
	if command != "" {
		input := map[string]any{"command": command, "description": "do as the user says"}
		text, err := json.Marshal(input)
		if err != nil {
			panic(err) // two strings
		}
		id := "toolu_" + random()
		begun, part = map[string]any{"type": "tool_use", "id": id, "name": "Bash", "input": map[string]any{}}, map[string]any{"type": "tool_use", "id": id, "name": "Bash", "input": input}
		delta, reason = map[string]any{"type": "input_json_delta", "partial_json": string(text)}, "tool_use"
	}
	whole := map[string]any{
		"id": "msg_1", "type": "message", "role": "assistant", "model": Model, "stop_reason": reason, "stop_sequence": nil,
		"content": []any{part}, "usage": map[string]int{"input_tokens": 3, "output_tokens": 4},
	}
	if !ask.Stream {
		return jsonAnswer(200, whole)
	}
	whole["content"], whole["stop_reason"] = []any{}, nil
	return events(
		map[string]any{"type": "message_start", "message": whole},
		map[string]any{"type": "content_block_start", "index": 0, "content_block": begun},
		map[string]any{"type": "content_block_delta", "index": 0, "delta": delta},
		map[string]any{"type": "content_block_stop", "index": 0},
		map[string]any{"type": "message_delta", "delta": map[string]any{"stop_reason": reason, "stop_sequence": nil}, "usage": map[string]int{"output_tokens": 4}},
		map[string]any{"type": "message_stop"},
	)
}

// input is a text, or a list of items.
type input []struct {
	Type    string  `json:"type"`
	Role    string  `json:"role"`
	Content content `json:"content"`
	Call    string  `json:"call_id"`
	Output  content `json:"output"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (in *input) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte(`"`)) {
		*in = make(input, 1)
		(*in)[0].Role = "user"
		return json.Unmarshal(text, &(*in)[0].Content)
	}
	type plain input
	return json.Unmarshal(text, (*plain)(in))
}

// response answers POST /v1/responses, streaming or not.
func response(r *http.Request) *answer {
	refused := func(says string) *answer {
		return jsonAnswer(400, map[string]any{"error": map[string]any{"message": says, "type": "invalid_request_error"}})
	}
	var ask struct {
		Model  string `json:"model"`
		Stream bool   `json:"stream"`
		Input  input  `json:"input"`
		Tools  []struct {
			Name string `json:"name"`
		} `json:"tools"`
	}
	text, ok := body(r, "application/json")
	if !ok || json.Unmarshal(text, &ask) != nil {
		return refused("the body is not JSON")
	}
	if ask.Model == "" || len(ask.Input) == 0 {
		return refused("Missing required parameter: 'model' or 'input'.")
	}
	var c conversation
	for _, tool := range ask.Tools {
		c.tools = append(c.tools, tool.Name)
	}
	for _, item := range ask.Input {
		switch {
		case item.Type == "function_call":
			c.calls = append(c.calls, item.Call)
		case item.Type == "function_call_output" && !slices.Contains(c.calls, item.Call):
			return refused("No tool call found for function call output with call_id " + item.Call + ".")
		case item.Type == "function_call_output":
			result := item.Output.text()
			c.result = &result
		case item.Role == "user":
			c.prompt += item.Content.text()
		}
	}
	says, command := c.next("exec_command")
	item := map[string]any{"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": []any{map[string]any{"type": "output_text", "text": says, "annotations": []any{}}}}
	if command != "" {
		arguments, err := json.Marshal(map[string]string{"cmd": command})
		if err != nil {
			panic(err) // a string
		}
		item = map[string]any{"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "call_" + random(), "name": "exec_command", "arguments": string(arguments)}
	}
	whole := map[string]any{
		"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": ask.Model, "output": []any{item},
		"usage": map[string]any{"input_tokens": 3, "input_tokens_details": map[string]int{"cached_tokens": 0}, "output_tokens": 4, "output_tokens_details": map[string]int{"reasoning_tokens": 0}, "total_tokens": 7},
	}
	if !ask.Stream {
		return jsonAnswer(200, whole)
	}
	begun := map[string]any{"id": "resp_1", "object": "response", "created_at": 1, "status": "in_progress", "model": ask.Model, "output": []any{}}
	return events(
		map[string]any{"type": "response.created", "sequence_number": 0, "response": begun},
		map[string]any{"type": "response.output_item.done", "sequence_number": 1, "output_index": 0, "item": item},
		map[string]any{"type": "response.completed", "sequence_number": 2, "response": whole},
	)
}
