package githubapi

import "net/http"

func (s *Server) graphQL(r *http.Request, _ []byte) answer { return s.refuse(r, errNotFound) }
