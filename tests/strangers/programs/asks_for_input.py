# There is nobody to answer a question.
try:
    print(input("continue? "))
except EOFError as error:
    print("nobody:", type(error).__name__)
