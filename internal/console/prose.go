package console

import "strings"

// span is a piece of a paragraph; Code is written between backticks.
type span struct {
	Text string
	Code bool
}

// prose reads text of ours as paragraphs: between empty lines, with code between backticks. Nothing else means anything.
func prose(text string) [][]span {
	var paragraphs [][]span
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		var spans []span
		for i, piece := range strings.Split(paragraph, "`") {
			if piece != "" {
				spans = append(spans, span{piece, i%2 == 1})
			}
		}
		if len(spans) > 0 {
			paragraphs = append(paragraphs, spans)
		}
	}
	return paragraphs
}
