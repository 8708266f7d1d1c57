package githubapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

// This file reads GraphQL documents, as far as clients of GitHub use the language: operations with variables, arguments, aliases and
// fragments. It refuses directives, subscriptions and block strings.

// selection is a field, or a fragment for one type.
type selection struct {
	alias, name string
	args        map[string]any // values, or variable
	on          string         // the type of a fragment
	spread      string         // the name of a fragment
	fields      []selection
}

type variable string

type graphDocument struct {
	kind      string
	defaults  map[string]any
	fields    []selection
	fragments map[string]selection
}

type graphParser struct {
	tokens []string
}

// queryError means that a query is not one of GitHub's schema, in GitHub's words.
type queryError string

func (e queryError) Error() string { return string(e) }

func queryErrorf(format string, args ...any) error { return queryError(fmt.Sprintf(format, args...)) }

var errSyntax error = queryError("Parse error")

// graphTokens splits a document. Strings keep their quotes.
func graphTokens(text string) ([]string, error) {
	var all []string
	for i := 0; i < len(text); {
		c := rune(text[i])
		switch {
		case unicode.IsSpace(c) || c == ',':
			i++
		case c == '#':
			for i < len(text) && text[i] != '\n' {
				i++
			}
		case c == '"':
			end := i + 1
			for end < len(text) && text[end] != '"' {
				if text[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(text) {
				return nil, errSyntax
			}
			all = append(all, text[i:end+1])
			i = end + 1
		case strings.HasPrefix(text[i:], "..."):
			all = append(all, "...")
			i += 3
		case strings.ContainsRune("{}()[]:=!$", c):
			all = append(all, string(c))
			i++
		case isWord(c):
			end := i
			for end < len(text) && isWord(rune(text[end])) {
				end++
			}
			all = append(all, text[i:end])
			i = end
		default:
			return nil, fmt.Errorf("%w: unexpected %q", errSyntax, c)
		}
	}
	return all, nil
}

func isWord(c rune) bool {
	return c == '_' || c == '-' || c == '.' || c < unicode.MaxASCII && (unicode.IsLetter(c) || unicode.IsDigit(c))
}

func (p *graphParser) peek() string {
	if len(p.tokens) == 0 {
		return ""
	}
	return p.tokens[0]
}

func (p *graphParser) next() string {
	one := p.peek()
	if one != "" {
		p.tokens = p.tokens[1:]
	}
	return one
}

func (p *graphParser) skip(token string) bool {
	if p.peek() != token {
		return false
	}
	p.next()
	return true
}

// parseGraph reads a document of one operation.
func parseGraph(text string) (graphDocument, error) {
	tokens, err := graphTokens(text)
	if err != nil {
		return graphDocument{}, err
	}
	p := &graphParser{tokens}
	doc := graphDocument{defaults: map[string]any{}, fragments: map[string]selection{}}
	for p.peek() != "" {
		switch kind := p.peek(); kind {
		case "fragment":
			p.next()
			name := p.next()
			if p.next() != "on" {
				return doc, errSyntax
			}
			one := selection{on: p.next()}
			if one.fields, err = p.selections(); err != nil {
				return doc, err
			}
			doc.fragments[name] = one
		case "query", "mutation", "{":
			if doc.kind != "" {
				return doc, queryError("An operation name is required")
			}
			doc.kind = "query"
			if kind != "{" {
				doc.kind = p.next()
				if p.peek() != "(" && p.peek() != "{" {
					p.next() // the operation's name
				}
			}
			if err := p.variables(doc.defaults); err != nil {
				return doc, err
			}
			if doc.fields, err = p.selections(); err != nil {
				return doc, err
			}
		default:
			return doc, fmt.Errorf("%w: unexpected %q", errSyntax, kind)
		}
	}
	if doc.kind == "" {
		return doc, errSyntax
	}
	return doc, nil
}

func (p *graphParser) variables(defaults map[string]any) error {
	if !p.skip("(") {
		return nil
	}
	for !p.skip(")") {
		if !p.skip("$") {
			return errSyntax
		}
		name := p.next()
		if !p.skip(":") {
			return errSyntax
		}
		for p.skip("[") {
		}
		p.next() // the type
		for p.skip("]") || p.skip("!") {
		}
		defaults[name] = nil
		if p.skip("=") {
			value, err := p.value()
			if err != nil {
				return err
			}
			defaults[name] = value
		}
	}
	return nil
}

func (p *graphParser) selections() ([]selection, error) {
	if !p.skip("{") {
		return nil, errSyntax
	}
	var all []selection
	for !p.skip("}") {
		one, err := p.selection()
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func (p *graphParser) selection() (selection, error) {
	var err error
	if p.skip("...") {
		if p.skip("on") {
			one := selection{on: p.next()}
			one.fields, err = p.selections()
			return one, err
		}
		return selection{spread: p.next()}, nil
	}
	one := selection{name: p.next()}
	if one.name == "" || !isWord(rune(one.name[0])) {
		return one, errSyntax
	}
	one.alias = one.name
	if p.skip(":") {
		one.name = p.next()
	}
	if p.skip("(") {
		if one.args, err = p.members(")"); err != nil {
			return one, err
		}
	}
	if p.peek() == "{" {
		one.fields, err = p.selections()
	}
	return one, err
}

func (p *graphParser) members(end string) (map[string]any, error) {
	all := map[string]any{}
	for !p.skip(end) {
		name := p.next()
		if !p.skip(":") {
			return nil, errSyntax
		}
		value, err := p.value()
		if err != nil {
			return nil, err
		}
		all[name] = value
	}
	return all, nil
}

func (p *graphParser) value() (any, error) {
	switch token := p.next(); token {
	case "":
		return nil, errSyntax
	case "$":
		return variable(p.next()), nil
	case "[":
		all := []any{}
		for !p.skip("]") {
			one, err := p.value()
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		}
		return all, nil
	case "{":
		return p.members("}")
	default:
		var value any
		if json.Unmarshal([]byte(token), &value) == nil {
			return value, nil // a string, a number, true, false or null
		}
		if !isWord(rune(token[0])) {
			return nil, errSyntax
		}
		return token, nil // an enum
	}
}

// bind replaces variables by their values.
func bind(value any, variables map[string]any) (any, error) {
	switch value := value.(type) {
	case variable:
		bound, ok := variables[string(value)]
		if !ok {
			return nil, queryErrorf("Variable $%s is used but not declared", string(value))
		}
		return bound, nil
	case []any:
		all := []any{}
		for _, one := range value {
			bound, err := bind(one, variables)
			if err != nil {
				return nil, err
			}
			all = append(all, bound)
		}
		return all, nil
	case map[string]any:
		all := map[string]any{}
		for name, one := range value {
			bound, err := bind(one, variables)
			if err != nil {
				return nil, err
			}
			all[name] = bound
		}
		return all, nil
	}
	return value, nil
}
