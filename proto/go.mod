module github.com/nereid-serving/nereid/proto

go 1.26
