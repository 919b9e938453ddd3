# A program without a screen draws figures into files, and its show() shows nothing.
import matplotlib
import matplotlib.pyplot as plt

print(matplotlib.get_backend().lower(), plt.isinteractive())
figure, axes = plt.subplots(figsize=(2, 2))
axes.plot([1, 2, 3])
figure.savefig("curve.png")
plt.show()
with open("curve.png", "rb") as file:
    print(file.read(4), plt.get_fignums())
import os

os.remove("curve.png")
