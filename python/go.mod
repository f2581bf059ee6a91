module github.com/nereid-serving/nereid/python

go 1.26.0
